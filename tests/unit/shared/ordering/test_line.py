import itertools
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.ordering.deadlines import Deadline, urgent
from shared.ordering.line import DRIFT_SECONDS, DRIFT_TOKENS, Line
from shared.ordering.prefix_cache import PrefixCache
from shared.ordering.shares import Shares
from shared.ordering.waiting_batch import AGEING_SECONDS, TURN_SECONDS, TURN_TOKENS
from shared.ordering.work import Work

NOW = 1_000_000.0


def work(batch: str, number: int = 0, **changes: object) -> Work:
    fields: dict[str, object] = {
        "tenant": "acme",
        "priority": 5,
        "created_at": NOW,
        "expires_at": NOW + 86_400,
        "tokens": 1000.0,
    }
    return Work(batch, number, **{**fields, **changes})  # type: ignore[arg-type]


def line(
    *works: Work,
    used: dict[str, float] | None = None,
    last_turns: dict[str, float] | None = None,
    cached_blocks: int = 0,
) -> Line:
    cache = PrefixCache(cached_blocks) if cached_blocks else None
    made = Line(Shares(used), cache, tokens_per_block=16, last_turns=last_turns)
    for one in works:
        made.add(one)
    return made


def drained(made: Line, now: float = NOW) -> list[str]:
    found = []
    while len(made):
        one, _ = made.pop(now)
        found.append(f"{one.batch_id}:{one.number}")
    return found


def test_a_small_batch_goes_before_the_rest_of_a_large_one_that_came_first() -> None:
    made = line(*(work("large", n, created_at=NOW - 5) for n in range(40)))
    for _ in range(20):
        made.pop(NOW)

    made.add(work("small"))

    assert drained(made)[0] == "small:0"


def test_tenants_take_turns_in_tokens_and_not_in_pieces() -> None:
    heavy = [work("heavy", n, tenant="heavy", tokens=3000.0) for n in range(20)]
    light = [work("light", n, tenant="light", tokens=1000.0) for n in range(60)]

    first = drained(line(*heavy, *light))[:40]

    assert sum(name.startswith("heavy") for name in first) == 10


def test_a_tenant_with_twice_the_weight_gets_twice_the_tokens() -> None:
    works = [
        work(name, n, tenant=name, weight=weight)
        for name, weight in (("one", 1.0), ("two", 2.0))
        for n in range(60)
    ]

    first = drained(line(*works))[:60]

    assert sum(name.startswith("two") for name in first) == 40


def test_a_tenant_that_was_away_is_owed_nothing() -> None:
    made = line(*(work("busy", n, tenant="busy") for n in range(20)), used={"busy": 1e9})

    for n in range(20):
        made.add(work("back", n, tenant="back"))

    assert sum(name.startswith("back") for name in drained(made)[:20]) == 10


def test_what_was_used_corrects_what_was_predicted() -> None:
    made = line(*(work(name, n, tenant=name) for name in ("honest", "liar") for n in range(20)))

    for _ in range(20):
        one, charged = made.pop(NOW)
        made.shares.charge(one.tenant, (1000 if one.tenant == "honest" else 9000) - charged)

    assert made.shares.of("liar") - made.shares.of("honest") <= 9000


def test_higher_priority_goes_first_within_a_tenant() -> None:
    assert drained(line(work("low", priority=1), work("high", priority=9))) == ["high:0", "low:0"]


def test_priority_gives_nothing_over_another_tenant() -> None:
    works = [
        work(name, n, tenant=name, priority=priority)
        for n in range(20)
        for name, priority in (("high", 9), ("low", 0))
    ]

    assert sum(name.startswith("low") for name in drained(line(*works))[:20]) == 10


def test_waiting_outweighs_priority_in_the_end() -> None:
    old = work("old", priority=1, created_at=NOW - 9 * AGEING_SECONDS)

    assert drained(line(work("new", priority=9), old))[0] == "old:0"


def test_batches_of_one_tenant_take_turns() -> None:
    tokens = TURN_TOKENS / 8
    works = [work(name, n, tokens=tokens) for name in ("a", "b") for n in range(16)]

    order = [name[0] for name in drained(line(*works))]

    assert [name for name, _ in itertools.groupby(order)] == ["a", "b", "a", "b"]


def test_who_had_a_turn_a_moment_ago_waits_for_who_had_none() -> None:
    works = [work("old", created_at=NOW - 5000), work("new")]

    assert drained(line(*works, last_turns={"old": NOW - 1}))[0] == "new:0"


def test_a_large_batch_that_runs_all_the_time_does_not_age() -> None:
    made = line(*(work("large", n, created_at=NOW - 36_000) for n in range(40)))
    for _ in range(20):
        made.pop(NOW)

    made.add(work("small", created_at=NOW))

    assert drained(made)[0] == "small:0"


def test_many_small_batches_do_not_hold_up_a_large_one_for_long() -> None:
    made = line(*(work("large", n, created_at=NOW - 5) for n in range(40)))
    made.pop(NOW)
    taken = []
    for second in range(2 * TURN_SECONDS):
        made.add(work(f"small-{second}", created_at=NOW + second, tokens=TURN_TOKENS))
        taken.append(made.pop(NOW + second)[0].batch_id)

    assert taken.count("large") > 0


def test_a_batch_that_waits_for_its_next_slice_keeps_its_place() -> None:
    made = line(*(work("small", n, tokens=TURN_TOKENS) for n in range(3)))
    drained(made)

    made.add(work("small", 4, created_at=NOW - 5))
    made.add(work("other"))

    assert drained(made)[0] == "other:0"


def test_what_waits_says_by_when_it_has_to_be_done() -> None:
    made = line(*(work("a", n) for n in range(3)))
    made.pop(NOW)

    assert made.deadlines() == [Deadline("a", NOW + 86_400, 2000.0, "acme")]


def test_an_urgent_batch_goes_before_the_others_of_its_tenant() -> None:
    made = line(work("calm", priority=9), work("late", priority=0))

    made.hurry(["late"], tokens_per_second=100.0)

    assert drained(made)[0] == "late:0"


def test_of_tenants_that_had_as_much_the_one_with_an_urgent_batch_goes_first() -> None:
    made = line(work("calm", tenant="other", priority=9), work("late", priority=0))

    made.hurry(["late"], tokens_per_second=100.0)

    assert drained(made)[0] == "late:0"


def test_of_two_urgent_batches_the_one_that_is_due_first_goes_first() -> None:
    made = line(work("second", tenant="other"), work("first"))

    made.hurry(["first", "second"], tokens_per_second=100.0)

    assert drained(made) == ["first:0", "second:0"]


def test_an_urgent_batch_of_a_tenant_that_had_more_waits_for_the_others() -> None:
    for rate in (0.0, 100.0):
        made = line(work("calm", tenant="other"), work("late"), used={"acme": 1e6})

        made.hurry(["late"], tokens_per_second=rate)

        assert drained(made) == ["calm:0", "late:0"]


@pytest.mark.parametrize("rate", [0.0, 1.0, 1000.0])
def test_who_says_that_all_is_urgent_gains_no_more_than_the_drift(rate: float) -> None:
    works = [work(name, n, tenant=name, tokens=60.0) for name in "ab" for n in range(400)]
    made = line(*works)
    made.hurry(["a"], tokens_per_second=rate)

    for _ in range(400):
        made.pop(NOW)
        ahead = made.shares.of("a") - made.shares.of("b")
        assert ahead <= (DRIFT_SECONDS * rate or DRIFT_TOKENS) + 60


@st.composite
def jobs(draw: st.DrawFn) -> dict[str, tuple[int, int]]:
    """Seconds of work and the deadline, in seconds from now, of a few jobs."""
    sizes = draw(st.lists(st.integers(1, 40), min_size=1, max_size=5))
    return {f"job-{n}": (size, draw(st.integers(size, 150))) for n, size in enumerate(sizes)}


@given(jobs=jobs(), others=st.integers(1, 3))
@settings(deadline=None, max_examples=40)
def test_a_tenant_meets_every_deadline_that_its_share_can_meet(
    jobs: dict[str, tuple[int, int]], others: int
) -> None:
    """Beside tenants that always have work, and whatever the order in which its batches came."""
    tenants = 1 + others
    if not any(_meets(jobs, order) for order in itertools.permutations(jobs)):
        return
    mine = [
        work(name, n, expires_at=NOW + tenants * deadline, tokens=1.0)
        for name, (size, deadline) in jobs.items()
        for n in range(size)
    ]
    made = line(*mine)
    for other in range(others):
        for n in range(len(mine) + 5):
            made.add(work(f"other-{other}", n, tenant=f"other-{other}", tokens=1.0))
    left, now = Counter(one.batch_id for one in mine), NOW
    while left:
        found = urgent(made.deadlines(), now=now, tokens_per_second=1.0)
        made.hurry(found, tokens_per_second=1.0)
        one, _ = made.pop(now)
        now += 1
        if one.batch_id in left:
            left[one.batch_id] -= 1
            if not left[one.batch_id]:
                # The order is fair to within a work of each tenant.
                assert now <= one.expires_at + tenants
                del left[one.batch_id]


@given(jobs=jobs())
@settings(deadline=None, max_examples=60)
def test_no_deadline_of_a_tenant_alone_is_missed_that_some_order_would_meet(
    jobs: dict[str, tuple[int, int]],
) -> None:
    if not any(_meets(jobs, order) for order in itertools.permutations(jobs)):
        return
    made = line(
        *(
            work(name, n, expires_at=NOW + deadline, tokens=1.0)
            for name, (size, deadline) in jobs.items()
            for n in range(size)
        )
    )
    left, now = {name: size for name, (size, _) in jobs.items()}, NOW
    while len(made):
        deadlines = [Deadline(name, NOW + jobs[name][1], float(left[name])) for name in left]
        made.hurry(urgent(deadlines, now=now, tokens_per_second=1.0), tokens_per_second=1.0)
        one, _ = made.pop(now)
        now += 1
        left[one.batch_id] -= 1
        if not left[one.batch_id]:
            assert now <= one.expires_at
            del left[one.batch_id]


def _meets(jobs: dict[str, tuple[int, int]], order: tuple[str, ...]) -> bool:
    now = 0
    for name in order:
        now += jobs[name][0]
        if now > jobs[name][1]:
            return False
    return True


def test_rows_that_begin_alike_run_together() -> None:
    works = [work("a", n, prefix=(n % 4,)) for n in range(16)]

    order = drained(line(*works, cached_blocks=2))

    kinds = [int(name.partition(":")[2]) % 4 for name in order]
    assert len(list(itertools.groupby(kinds))) == 4


def test_a_beginning_that_two_groups_share_is_used_by_one_after_the_other() -> None:
    prefixes = [(first, 10 * first + second) for first in range(4) for second in range(4)]
    random.Random(5).shuffle(prefixes)
    works = [work("a", n, prefix=prefix) for n, prefix in enumerate(prefixes * 2)]
    made = line(*works, cached_blocks=2)

    order = [made.pop(NOW)[0].prefix for _ in works]

    assert len(list(itertools.groupby(order, key=lambda prefix: prefix[0]))) == 4
    assert len(list(itertools.groupby(order))) == 16


def test_the_group_that_runs_goes_on_when_others_come() -> None:
    made = line(*(work("a", n, prefix=(5,)) for n in range(4)), cached_blocks=2)
    made.pop(NOW)

    for n in range(4, 20):
        made.add(work("a", n, prefix=(n % 10,)))

    assert [made.pop(NOW)[0].prefix for _ in range(3)] == [(5,)] * 3


def test_what_is_cached_goes_first_across_tenants_but_not_for_long() -> None:
    shared = [work("a", n, tenant="a", prefix=(1,)) for n in range(200)]
    other = [work("b", n, tenant="b", prefix=(2,)) for n in range(200)]

    made = line(*shared, *other, cached_blocks=1)
    made.hurry([], tokens_per_second=20_000.0)

    order = [name[0] for name in drained(made)]

    runs = [len(list(run)) for _, run in itertools.groupby(order)]
    assert runs[0] > 10
    assert max(runs[1:5]) <= 2 * (DRIFT_SECONDS * 20 + 1)


def test_a_small_batch_does_not_wait_for_what_is_cached() -> None:
    made = line(*(work("a", n, tenant="a", prefix=(1,)) for n in range(200)), cached_blocks=1)
    made.hurry([], tokens_per_second=20_000.0)
    made.pop(NOW)

    made.add(work("small", tenant="b"))

    assert [made.pop(NOW)[0].batch_id for _ in range(3)].count("small") == 1


def test_cached_tokens_are_not_charged() -> None:
    made = line(*(work("a", n, prefix=(1, 2)) for n in range(2)), cached_blocks=9)

    assert [made.pop(NOW)[1] for _ in range(2)] == [1000.0, 968.0]


def test_near_the_end_of_a_batch_long_answers_go_first() -> None:
    made = line(*(work("a", n, prefix=(n % 2,), kind=n % 2) for n in range(8)), cached_blocks=9)
    for _ in range(5):
        made.lengths.note("a", 0, 10)
        made.lengths.note("a", 1, 900)

    made.complete("a")

    assert [int(name[-1]) % 2 for name in drained(made)] == [1, 1, 1, 1, 0, 0, 0, 0]


def test_one_row_of_each_kind_is_tried_before_the_end_of_a_batch_is_put_in_order() -> None:
    made = line(*(work("a", n, kind=n // 10) for n in range(40)))
    made.complete("a")

    order = [made.pop(NOW)[0].kind for _ in range(14)]

    assert sorted(order[:4]) == [0, 1, 2, 3]
    assert len(set(order[4:13])) == 1


def test_of_many_kinds_each_is_tried_before_the_second_row_of_any() -> None:
    kinds = 100
    made = line(*(work("a", n, kind=n // 10) for n in range(10 * kinds)))
    made.complete("a")

    order = [made.pop(NOW)[0].kind for _ in range(kinds)]

    assert sorted(order) == list(range(kinds))


def test_lengths_that_are_learned_late_still_change_the_end_of_a_batch() -> None:
    made = line(*(work("a", n, kind=n % 2) for n in range(200)))
    made.complete("a")
    for _ in range(40):
        made.pop(NOW)

    for _ in range(5):
        made.lengths.note("a", 0, 10)
        made.lengths.note("a", 1, 900)

    assert [int(name[-1]) % 2 for name in drained(made)[60:80]] == [1] * 20


def test_the_limit_of_a_row_is_known_without_learning() -> None:
    made = line(work("a", 0, max_output=8), work("a", 1, max_output=800))

    assert drained(made) == ["a:1", "a:0"]


def test_what_a_batch_has_waiting_can_be_taken_out() -> None:
    made = line(*(work("a", n) for n in range(3)), work("b"))

    assert made.remove("a") == 3
    assert made.remove("unknown") == 0
    assert drained(made) == ["b:0"]


def test_some_rows_of_a_batch_can_be_taken_out() -> None:
    made = line(*(work("a", n, prefix=(n % 3,)) for n in range(9)))

    assert made.remove("a", [1, 2, 4, 7, 99]) == 4
    assert sorted(drained(made)) == ["a:0", "a:3", "a:5", "a:6", "a:8"]


def test_a_batch_whose_last_row_is_taken_out_leaves_its_place() -> None:
    made = line(work("a", 0), work("b", 0))

    made.remove("a", [0])

    assert drained(made) == ["b:0"]


def test_a_look_at_the_next_work_is_what_comes() -> None:
    made = line(*(work(name, n, tenant=name) for name in "ab" for n in range(3)))

    assert [made.peek(NOW) == made.pop(NOW)[0] for _ in range(6)] == [True] * 6


@pytest.mark.parametrize("verb", ["peek", "pop"])
def test_an_empty_line_has_no_next_work(verb: str) -> None:
    with pytest.raises(IndexError):
        getattr(line(), verb)(NOW)


@st.composite
def mixed_works(draw: st.DrawFn) -> list[Work]:
    count = draw(st.integers(1, 60))
    small = st.integers(0, 2)
    return [
        work(
            f"{tenant}-{draw(small)}",
            n,
            tenant=tenant,
            prefix=tuple(draw(st.lists(small, max_size=3))),
            kind=draw(small),
            tokens=float(draw(st.integers(1, 40_000))),
        )
        for n, tenant in enumerate(draw(st.sampled_from("abc")) for _ in range(count))
    ]


@given(works=mixed_works(), data=st.data())
@settings(deadline=None, max_examples=40)
def test_every_work_leaves_once_however_the_line_is_used(
    works: list[Work], data: st.DataObject
) -> None:
    made, left = line(cached_blocks=4), list[Work]()
    for one in works:
        made.add(one)
        left.append(one)
        match data.draw(st.integers(0, 3)):
            case 0:
                left.remove(made.pop(NOW)[0])
            case 1:
                made.complete(one.batch_id)
            case 2:
                made.lengths.note(one.batch_id, one.kind, 10)
            case _:
                gone = [other for other in left if other.batch_id == one.batch_id][:2]
                assert made.remove(one.batch_id, [other.number for other in gone]) == len(gone)
                left = [other for other in left if other not in gone]
        assert len(made) == len(left)

    assert sorted(drained(made)) == sorted(f"{one.batch_id}:{one.number}" for one in left)
