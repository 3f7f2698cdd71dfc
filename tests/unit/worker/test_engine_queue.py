from hypothesis import given
from hypothesis import strategies as st

from shared.ordering.work import Work
from shared.slices import SliceUsage
from worker.engine_queue import Capacity, EngineLoad, EngineQueue, QueuedRow

SEATS, SPARE = 8, 4
CAPACITY = Capacity(seats=SEATS, spare_seats=SPARE, spare_kv=0.1)
#: With the one that is ahead, so that no seat is empty between two rows.
FULL = SEATS + 1


def work(batch_id: str, *, rows: float = 1000, tenant: str = "", priority: int = 0) -> Work:
    return Work(batch_id, 0, tenant or batch_id, priority, 0, 86_400, 100, batch_rows=rows)


def a_full_queue(capacity: Capacity = CAPACITY) -> tuple[EngineQueue, list[QueuedRow]]:
    """A queue in which a giant batch has all that it can have."""
    queue = EngineQueue(capacity)
    for _ in range(1000):
        queue.add(work("giant"))
    return queue, list(queue.admit(0.0))


def test_a_batch_has_the_seats_and_what_keeps_them_full_but_not_the_spare_ones() -> None:
    queue, inside = a_full_queue()

    assert len(inside) == FULL
    assert queue.inside == FULL
    assert queue.waiting == 1000 - FULL


def test_rows_of_a_small_batch_enter_a_full_engine_at_once_and_before_others_in_vllm() -> None:
    queue, inside = a_full_queue()
    for _ in range(3):
        queue.add(work("small", rows=3))

    entered = list(queue.admit(1.0))

    assert [row.work.batch_id for row in entered] == ["small"] * 3
    ranks = [row.rank for row in inside if row.rank is not None]
    assert all(row.rank is not None and row.rank < min(ranks) for row in entered)


def test_small_batches_have_the_spare_seats_and_with_them_no_more_than_their_share() -> None:
    queue, inside = a_full_queue()
    for number in range(100):
        queue.add(work(f"tiny-{number}", rows=1, tenant="flood"))

    assert len(list(queue.admit(1.0))) == SPARE
    for row in inside:
        queue.leave(row, 2.0)
    entered = [row.work.tenant for row in queue.admit(2.0)]

    # Half of all since they came, up to a row.
    assert abs(entered.count("giant") - (entered.count("flood") + SPARE)) <= 1


def test_the_first_to_wait_is_not_the_first_to_enter() -> None:
    queue, inside = a_full_queue()
    queue.add(work("urgent", tenant="giant", priority=9))
    queue.leave(inside[0], 1.0)

    [entered] = queue.admit(1.0)

    assert entered.work.batch_id == "urgent"


def test_a_batch_whose_window_closes_soon_goes_first() -> None:
    queue, inside = a_full_queue()
    queue.add(work("late")._replace(expires_at=60.0))
    for number in range(20):
        queue.add(work("poor", tenant=f"poor-{number}"))
    queue.leave(inside[0], 1.0)

    [entered] = queue.admit(1.0)

    assert entered.work.batch_id == "late"


def test_a_tenant_is_charged_for_what_its_rows_took_and_not_for_what_was_predicted() -> None:
    queue, inside = a_full_queue()
    for row in inside:
        # Of a prompt of 1,000 tokens, 999 were cached.
        queue.learn(row, SliceUsage(input_tokens=1000, cached_tokens=999, output_tokens=1))
    for _ in range(20):
        queue.add(work("other"))
    for row in inside:
        queue.leave(row, 1.0)

    entered = [row.work.tenant for row in queue.admit(1.0)]

    # It had 18 tokens before the other one came, who is owed nothing for that time.
    assert 3 <= entered.count("giant") <= 6


def test_a_row_that_is_given_up_takes_no_seat() -> None:
    queue, inside = a_full_queue()
    given_up = queue.add(work("urgent", tenant="giant", priority=9))
    queue.leave(given_up, 1.0)
    queue.leave(inside[0], 1.0)

    [entered] = queue.admit(1.0)

    assert entered.work.batch_id == "giant"
    assert queue.waiting == 1000 - FULL - 1


def test_a_part_of_the_kv_cache_stays_free_for_small_batches() -> None:
    queue, inside = a_full_queue()
    queue.note(EngineLoad(running=SEATS, waiting=0, kv_usage=0.95), 1.0)
    queue.leave(inside[0], 1.0)
    queue.add(work("small", rows=1))

    assert [row.work.batch_id for row in queue.admit(1.0)] == ["small"]
    queue.note(EngineLoad(running=SEATS + 1, waiting=0, kv_usage=0.85), 2.0)
    assert [row.work.batch_id for row in queue.admit(2.0)] == ["giant"]


def test_an_engine_that_emptied_is_not_thought_to_be_full() -> None:
    queue, inside = a_full_queue()
    queue.note(EngineLoad(running=SEATS, waiting=0, kv_usage=1.0), 1.0)
    for row in inside:
        queue.leave(row, 1.0)

    assert len(list(queue.admit(1.0))) == FULL


def test_seats_that_stay_empty_let_more_rows_enter_ahead_and_rows_that_wait_fewer() -> None:
    queue, inside = a_full_queue(Capacity(seats=100, spare_seats=0, spare_kv=0.1))
    first = len(inside)
    for step in range(100):
        queue.note(EngineLoad(running=90, waiting=0), float(step))
        inside += queue.admit(float(step))
    most = len(inside)
    for step in range(100):
        queue.note(EngineLoad(running=100, waiting=5), 100.0 + step)
    for row in inside[:50]:
        queue.leave(row, 200.0)
    inside[:50] = queue.admit(200.0)

    assert first == 110
    assert most == 125
    assert queue.inside == 101


def test_of_rows_of_one_step_as_many_are_inside_as_a_short_step_takes() -> None:
    capacity = Capacity(seats=256, spare_seats=8, spare_kv=0.1, is_one_step=True)
    queue, inside = a_full_queue(capacity)
    now = 0.0

    def run(rows_per_second: float) -> int:
        nonlocal now, inside
        for _ in range(60):
            now += len(inside) / rows_per_second
            for row in inside:
                queue.leave(row, now)
            for _ in inside:
                queue.add(work("giant"))
            queue.note(EngineLoad(), now)
            inside = list(queue.admit(now))
        return len(inside)

    assert run(40) == 8
    assert 90 <= run(1000) <= 110
    assert run(10_000) == 256


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("add"), st.integers(0, 5)),
            st.tuples(st.just("leave"), st.integers(0, 1_000)),
            st.tuples(st.just("note"), st.integers(0, 20)),
        ),
        max_size=120,
    )
)
def test_every_row_enters_once_unless_it_leaves_and_never_are_too_many_inside(
    steps: list[tuple[str, int]],
) -> None:
    queue = EngineQueue(CAPACITY)
    known: list[QueuedRow] = []
    entered: list[QueuedRow] = []
    now = 0.0
    for verb, number in steps:
        now += 1.0
        if verb == "add":
            rows = 2 if number % 2 else 1000
            known.append(queue.add(work(f"batch-{number}", rows=rows, tenant=f"t{number // 2}")))
        elif verb == "leave" and known:
            queue.leave(known.pop(number % len(known)), now)
        else:
            queue.note(EngineLoad(number, number // 3, number / 20), now)
        entered += queue.admit(now)
        inside = [row for row in known if row.rank is not None]
        assert queue.inside == len(inside) <= SEATS + SEATS // 4 + SPARE
        assert queue.waiting == len(known) - len(inside)
        assert queue.inside or not queue.waiting
    while known:
        for row in [row for row in known if row.rank is not None]:
            queue.leave(row, now)
            known.remove(row)
        entered += queue.admit(now)

    assert len(entered) == len(set(map(id, entered)))
    assert len({row.rank for row in entered}) == len(entered)
