import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.ordering.work import Work
from shared.slices import SliceUsage
from worker.engine_queue import (
    MIN_ROWS,
    MOST_STEP_SECONDS,
    SHORT_STEP_SECONDS,
    STEP_SECONDS,
    EngineQueue,
    QueuedRow,
    Rate,
)
from worker.engine_seats import Capacity

SEATS, SPARE = 32, 4
CAPACITY = Capacity(seats=SEATS, spare_seats=SPARE, spare_kv=0.1)
#: Rows that are prepared while others have all seats.
AHEAD = SEATS // 2
#: Of the giant batch.
ROWS = 1000


def work(batch_id: str, *, rows: float = ROWS, tenant: str = "", priority: int = 0) -> Work:
    return Work(batch_id, 0, tenant or batch_id, priority, 0, 86_400, 100, batch_rows=rows)


class FullEngine:
    """A queue in front of seats, and a giant batch that has all that it can have."""

    def __init__(self) -> None:
        self.queue = EngineQueue(CAPACITY)
        for _ in range(ROWS):
            self.queue.add(work("giant"))
        self.seated: list[QueuedRow] = []
        self._prepared: list[QueuedRow] = []
        self.admit(0.0)

    def admit(self, now: float) -> list[QueuedRow]:
        """Let rows enter and be seated until nothing moves; returns those that entered."""
        entered: list[QueuedRow] = []
        while found := list(self.queue.admit(now)):
            entered += found
            self._prepared += found
            self._seat()
        return entered

    def end(self, count: int, now: float) -> list[QueuedRow]:
        """End so many rows, one after another; returns those that entered meanwhile."""
        entered: list[QueuedRow] = []
        for _ in range(count):
            self.queue.leave(self.seated.pop(0), now)
            self._seat()
            entered += self.admit(now)
        return entered

    def _seat(self) -> None:
        while self._prepared and len(self.seated) < SEATS:
            self.seated.append(self._prepared.pop(0))
            self.queue.seat(self.seated[-1])


def test_a_batch_has_the_seats_and_rows_that_are_prepared_for_the_next_ones() -> None:
    engine = FullEngine()

    assert engine.queue.inside == SEATS + AHEAD
    assert engine.queue.waiting == ROWS - SEATS - AHEAD


def test_rows_of_a_small_batch_enter_a_full_engine_at_once_and_before_others_in_vllm() -> None:
    engine = FullEngine()
    for _ in range(3):
        engine.queue.add(work("small", rows=3))

    entered = list(engine.queue.admit(1.0))

    assert [row.work.batch_id for row in entered] == ["small"] * 3
    ranks = [row.rank for row in engine.seated if row.rank is not None]
    assert all(row.rank is not None and row.rank < min(ranks) for row in entered)
    assert all(row.is_spare for row in entered)


def test_small_batches_have_the_spare_seats_and_with_them_no_more_than_their_share() -> None:
    engine = FullEngine()
    for number in range(100):
        engine.queue.add(work(f"tiny-{number}", rows=1, tenant="flood"))

    assert len(list(engine.queue.admit(1.0))) == SPARE
    entered = [row.work.tenant for row in engine.end(80, 2.0)]

    # Half of all that is computed since they came, up to a row.
    giant = SEATS + AHEAD + entered.count("giant")
    assert abs(giant - (entered.count("flood") + SPARE)) <= 1


def test_the_first_to_wait_is_not_the_first_to_enter() -> None:
    engine = FullEngine()
    engine.queue.add(work("urgent", tenant="giant", priority=9))

    [entered] = engine.end(1, 1.0)

    assert entered.work.batch_id == "urgent"


def test_a_batch_whose_window_closes_soon_goes_first() -> None:
    engine = FullEngine()
    engine.queue.add(work("late")._replace(expires_at=60.0))
    for number in range(20):
        engine.queue.add(work("poor", tenant=f"poor-{number}"))

    [entered] = engine.end(1, 1.0)

    assert entered.work.batch_id == "late"


def test_a_window_that_closes_soon_is_seen_by_a_clock_that_was_set_back() -> None:
    engine = FullEngine()
    engine.queue.add(work("late")._replace(expires_at=5000.0))
    for number in range(20):
        engine.queue.add(work("poor", tenant=f"poor-{number}"))
    list(engine.queue.admit(8000.0))
    engine.queue.add(work("later")._replace(expires_at=4460.0))

    list(engine.queue.admit(4400.0))

    assert engine.queue.earliest_end == 4460.0


def test_a_tenant_is_charged_for_what_its_rows_took_and_not_for_what_was_predicted() -> None:
    engine = FullEngine()
    for row in engine.seated:
        # Of a prompt of 1,000 tokens, 999 were cached: a fiftieth of what was predicted.
        usage = SliceUsage(input_tokens=1000, cached_tokens=999, output_tokens=1)
        engine.queue.learn(row, usage, 0.0)
    for _ in range(ROWS):
        engine.queue.add(work("other"))
    for row in engine.seated:
        engine.queue.learn(row, SliceUsage(output_tokens=1), 0.0)

    entered = [row.work.tenant for row in engine.end(SEATS, 1.0)]

    # It was charged 3,200 tokens too much, and the other one is owed nothing for the time before.
    assert entered.count("giant") > entered.count("other")


def test_a_row_that_is_given_up_takes_no_seat() -> None:
    engine = FullEngine()
    given_up = engine.queue.add(work("urgent", tenant="giant", priority=9))
    engine.queue.leave(given_up, 1.0)

    [entered] = engine.end(1, 1.0)

    assert entered.work.batch_id == "giant"
    assert engine.queue.waiting == ROWS - SEATS - AHEAD - 1


def test_rows_that_begin_alike_follow_each_other() -> None:
    queue = EngineQueue(CAPACITY._replace(kv_tokens=100_000))
    for number in range(60):
        queue.add(work("giant")._replace(prefix=(number % 3,)))

    entered = [row.work.prefix for row in queue.admit(0.0)]

    assert entered == [entered[0]] * AHEAD


def test_rows_of_tenants_that_share_no_cache_do_not_begin_alike() -> None:
    queue = EngineQueue(CAPACITY._replace(kv_tokens=100_000))
    salted = work("giant")._replace(prefix=(1, 2))

    rows = [queue.add(salted._replace(cache_salt=salt)) for salt in ("", "a", "a", "b")]

    prefixes = [row.work.prefix for row in rows]
    assert prefixes[0] == (1, 2)
    assert prefixes[1] == prefixes[2]
    assert len(set(prefixes)) == 3


@pytest.mark.parametrize("is_last_here", [True, False], ids=["here", "at another replica"])
def test_when_the_last_rows_of_a_batch_are_there_long_answers_go_first(
    is_last_here: bool,
) -> None:
    queue = EngineQueue(Capacity(seats=1, spare_seats=0, spare_kv=0))
    for number in range(20):
        long = work("giant")._replace(kind=number % 2, max_output=10 ** (number % 2 + 1))
        queue.add(long._replace(ends_batch=is_last_here and number == 19))
    if not is_last_here:
        queue.complete("giant")

    entered = [row.work.max_output for row in queue.admit(0.0)]

    # Of each kind one is tried first.
    assert sorted(entered[:2]) == [10, 100]
    assert entered[2:] == [100] * (len(entered) - 2)


def test_rows_that_all_have_limits_of_their_own_go_longest_first_without_trials() -> None:
    queue = EngineQueue(Capacity(seats=1, spare_seats=0, spare_kv=0))
    for number in range(20):
        row = work("giant")._replace(kind=number, max_output=float(number))
        queue.add(row._replace(ends_batch=number == 19))

    entered = [row.work.max_output for row in queue.admit(0.0)]

    assert entered == sorted(range(20), reverse=True)[: len(entered)]


@pytest.mark.parametrize(
    ("answers", "expected"), [([], 70.0), ([10, 30], 20.0), ([900], 200.0)], ids=str
)
def test_an_answer_is_expected_to_be_as_long_as_others_of_its_kind(
    answers: list[int], expected: float
) -> None:
    engine = FullEngine()
    row = engine.seated[0]
    for tokens in answers:
        engine.queue.learn(row, SliceUsage(output_tokens=tokens), 0.0)

    assert engine.queue.expected_output(row, prompt_tokens=30, max_tokens=200) == expected


@pytest.mark.parametrize(("answers", "expected"), [([], 70.0), ([10, 8], 20.0), ([60], 70.0)])
def test_an_answer_of_a_new_kind_is_expected_to_be_longer_than_those_that_came(
    answers: list[int], expected: float
) -> None:
    engine = FullEngine()
    row = engine.seated[0]
    for tokens in answers:
        engine.queue.learn(row, SliceUsage(output_tokens=tokens), 0.0)
    other = QueuedRow(row.work._replace(kind=row.work.kind + 1))

    assert engine.queue.expected_output(other, prompt_tokens=30, max_tokens=200) == expected


def test_an_answer_of_a_row_that_asks_for_several_is_one_of_them() -> None:
    engine = FullEngine()
    row = engine.seated[0]
    engine.queue.seat(row)

    engine.queue.learn(row, SliceUsage(output_tokens=60), 0.0)

    assert engine.queue.expected_output(row, prompt_tokens=30, max_tokens=200) == 30


@pytest.mark.parametrize("rows_per_second", [40, 1000, 10_000])
@pytest.mark.parametrize(
    ("step_seconds", "seconds_inside"),
    [(2 * SHORT_STEP_SECONDS, STEP_SECONDS), (SHORT_STEP_SECONDS / 2, MOST_STEP_SECONDS)],
)
def test_of_rows_of_one_step_as_many_are_inside_as_a_short_time_takes(
    rows_per_second: float, step_seconds: float, seconds_inside: float
) -> None:
    queue = EngineQueue(Capacity(seats=8192, spare_seats=8, spare_kv=0, is_one_step=True))
    for _ in range(4000):
        queue.add(work("giant"))
    now, inside = 0.0, list(queue.admit(0.0))
    for _ in range(60):
        taken = len(inside) / rows_per_second
        for step in range(1, 1 + max(1, round(taken / step_seconds))):
            queue.note_step(now + step * step_seconds)
        now += taken
        for row in inside:
            queue.leave(row, now)
            queue.add(work("giant"))
        inside = list(queue.admit(now))

    wanted = max(MIN_ROWS, seconds_inside * rows_per_second)

    assert 0.9 * wanted <= len(inside) <= 1.1 * wanted


def test_of_rows_of_one_step_those_of_small_batches_enter_before_hundreds_of_others() -> None:
    queue = EngineQueue(Capacity(seats=8192, spare_seats=8, spare_kv=0, is_one_step=True))
    for _ in range(MIN_ROWS):
        queue.add(work("giant"))
    small = queue.add(work("small", rows=1))

    assert next(queue.admit(0.0)) is small
    assert small.is_spare
    assert small not in list(queue.admit(0.0))


def test_a_rate_forgets_what_was_long_ago_and_leaves_out_idle_time() -> None:
    rate = Rate(1.0)
    assert rate.per_second == 0
    rate.skip(0.0)
    for second in range(1, 11):
        rate.note(100, float(second))
    assert rate.per_second == pytest.approx(100)

    rate.skip(1000.0)
    for tenth in range(1, 51):
        rate.note(1, 1000 + tenth / 10)

    assert rate.per_second == pytest.approx(10, rel=0.1)


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("add"), st.integers(0, 5)),
            st.tuples(st.just("leave"), st.integers(0, 1_000)),
            st.tuples(st.just("seat"), st.integers(0, 1_000)),
        ),
        max_size=200,
    )
)
def test_every_row_enters_once_unless_it_leaves_and_never_are_too_many_prepared(
    steps: list[tuple[str, int]],
) -> None:
    queue = EngineQueue(CAPACITY)
    known: list[QueuedRow] = []
    entered: list[QueuedRow] = []
    now = 0.0
    for verb, number in steps:
        now += 1.0
        inside = [row for row in known if row.rank is not None]
        if verb == "add":
            rows = 2 if number % 2 else ROWS
            known.append(queue.add(work(f"batch-{number}", rows=rows, tenant=f"t{number // 2}")))
        elif verb == "leave" and known:
            queue.leave(known.pop(number % len(known)), now)
        elif verb == "seat" and inside:
            queue.seat(inside[number % len(inside)])
        entered += queue.admit(now)
        inside = [row for row in known if row.rank is not None]
        assert queue.inside == len(inside)
        assert queue.waiting == len(known) - len(inside)
        prepared = [row for row in inside if not row.seated and not row.is_spare]
        assert len(prepared) <= AHEAD
        assert len([row for row in inside if row.is_spare]) <= SPARE
        assert len(prepared) == AHEAD or not queue.waiting
    while known:
        for row in [row for row in known if row.rank is not None]:
            queue.leave(row, now)
            known.remove(row)
        entered += queue.admit(now)

    assert len(entered) == len(set(map(id, entered)))
    assert len({row.rank for row in entered}) == len(entered)
