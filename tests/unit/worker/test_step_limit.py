import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.times import Time
from worker.live_control import QUIET_SECONDS
from worker.step_limit import FREE, Group, StepLimit, headers

LIMIT = 100


def a_limit(clock: Time | None = None) -> StepLimit:
    """One that a live call is beside."""
    limit = StepLimit(clock or Time())
    limit.add("live", headers(LIMIT, is_live=True))
    limit.begin()
    return limit


def test_a_step_has_so_many_tokens_of_batches_and_all_of_live_calls() -> None:
    limit = a_limit()

    assert limit.take("a", 70, may_split=True) == 70
    assert limit.take("live", 5000, may_split=True) == 5000
    assert limit.take("b", 70, may_split=True) == 30
    assert limit.take("c", 70, may_split=True) == 0

    limit.begin()
    assert limit.take("b", 40, may_split=True) == 40


def test_a_prompt_that_may_not_be_split_waits_for_a_step_that_it_begins() -> None:
    limit = a_limit()

    assert limit.take("a", 10, may_split=True) == 10
    assert limit.take("b", 500, may_split=False) == 0
    assert limit.take("c", 50, may_split=False) == 50

    limit.begin()
    assert limit.take("b", 500, may_split=False) == 500
    assert limit.take("c", 1, may_split=True) == 0


def test_without_live_calls_nothing_is_limited() -> None:
    limit = StepLimit()
    limit.add("row", headers(LIMIT, is_live=False))
    limit.begin()

    assert limit.take("row", 5000, may_split=True) == 5000


def test_the_limit_holds_for_two_seconds_after_the_last_live_call() -> None:
    clock = Time()
    limit = a_limit(clock)
    limit.leave("live")

    clock.now = QUIET_SECONDS - 0.1
    limit.begin()
    assert limit.take("row", 5000, may_split=True) == LIMIT
    clock.now = QUIET_SECONDS
    limit.begin()
    assert limit.take("row", 5000, may_split=True) == 5000


class Vectors:
    """A model that gives vectors, with rows of 50 tokens."""

    def __init__(self, *, tokens_per_second: float, step_seconds: float = 0.0) -> None:
        self._clock = Time()
        self._rate, self._step_seconds = tokens_per_second, step_seconds
        self.limit = StepLimit(self._clock, is_one_step=True)

    def step(self, rows: int, small: int = 0) -> tuple[int, int]:
        """How many of these rows, and of a small batch's, are in the next step."""
        self.limit.begin()
        of_small = [
            self.limit.take(f"small{number}", 50, may_split=False, goes_first=True)
            for number in range(small)
        ]
        others = [self.limit.take(f"row{number}", 50, may_split=False) for number in range(rows)]
        tokens = sum(of_small) + sum(others)
        self._clock.now += self._step_seconds + tokens / self._rate
        self.limit.end()
        return sum(others) // 50, sum(of_small) // 50


def test_a_step_of_vectors_has_what_takes_a_short_while() -> None:
    vectors = Vectors(tokens_per_second=10_000)

    # Nobody knows yet how long a row takes.
    assert vectors.step(40) == (40, 0)
    assert vectors.step(40) == (10, 0)


def test_where_rows_are_fast_all_are_in_a_step() -> None:
    vectors = Vectors(tokens_per_second=1_000_000, step_seconds=0.005)
    # One at a time, a row costs a hundred times as much.
    for _ in range(50):
        vectors.step(1)

    assert [vectors.step(800)[0] for _ in range(20)][-1] == 800


def test_steps_of_vectors_keep_a_core_busy_however_slow_it_is() -> None:
    vectors = Vectors(tokens_per_second=10, step_seconds=1)

    assert [vectors.step(40)[0] for _ in range(20)][-1] == 5


def test_a_small_batch_is_in_the_next_step_of_vectors_with_fewer_others() -> None:
    vectors = Vectors(tokens_per_second=10_000)
    vectors.step(40)

    assert vectors.step(40, small=4) == (6, 4)
    assert vectors.step(40, small=30) == (0, 30)


def test_a_small_batch_has_every_other_step_of_vectors_alone() -> None:
    vectors = Vectors(tokens_per_second=10_100)
    vectors.step(40)
    vectors.limit.add("small0", None, is_small=True)

    steps = [vectors.step(40, small=1) for _ in range(4)]
    assert steps == [(0, 1), (9, 1), (0, 1), (9, 1)]

    vectors.limit.leave("small0")
    assert vectors.step(40) == (10, 0)


def test_no_step_of_vectors_is_empty_while_a_small_batch_waits_for_its_last_row() -> None:
    vectors = Vectors(tokens_per_second=10_000)
    vectors.limit.add("small0", of_group(1, 2), is_small=True)

    assert vectors.step(10, small=1) == (10, 0)

    vectors.limit.add("small1", of_group(1, 2), is_small=True)
    assert vectors.step(10, small=2) == (0, 2)


def test_a_step_of_vectors_that_is_made_up_early_began_with_the_end_of_the_one_before_it() -> None:
    clock = Time()
    limit = StepLimit(clock, is_one_step=True)
    limit.begin()
    taken = before = limit.take("row0", 1000, may_split=True)
    for number in range(1, 50):
        limit.begin()
        taken = limit.take(f"row{number}", 1000, may_split=True)
        clock.now += before / 10_000
        limit.end()
        before = taken

    assert taken == pytest.approx(500, abs=1)


def test_what_came_last_says_what_the_limit_is() -> None:
    limit = a_limit()

    limit.add("row", headers(7, is_live=False))
    limit.begin()
    assert limit.take("row", 50, may_split=True) == 7
    limit.add("row", headers(FREE, is_live=False))
    limit.begin()
    assert limit.take("row", 50, may_split=True) == 50


def test_other_headers_go_on() -> None:
    limit = StepLimit()

    assert limit.add("a", {"traceparent": "00-1", **headers(1, is_live=True)}) == {
        "traceparent": "00-1"
    }
    assert limit.add("b", headers(1, is_live=True)) is None
    assert limit.add("c", None) is None


@given(st.lists(st.tuples(st.integers(1, 300), st.booleans()), min_size=1, max_size=30))
def test_every_prompt_is_computed_in_the_end(prompts: list[tuple[int, bool]]) -> None:
    limit = a_limit()
    left = {str(number): tokens for number, (tokens, _) in enumerate(prompts)}
    steps = 0

    while left:
        limit.begin()
        taken = {}
        for id_, tokens in left.items():
            taken[id_] = limit.take(id_, tokens, may_split=prompts[int(id_)][1])
        whole = [id_ for id_ in left if not prompts[int(id_)][1] and taken[id_]]
        assert sum(taken.values()) <= LIMIT or whole == [next(iter(left))]
        left = {id_: tokens - taken[id_] for id_, tokens in left.items() if tokens > taken[id_]}
        steps += 1
        assert steps <= sum(tokens for tokens, _ in prompts)


def of_group(number: int, rows: int) -> dict[str, str]:
    return headers(None, is_live=False, group=Group(number, rows))


def taken(limit: StepLimit, *ids: str) -> list[int]:
    """What each gets of the next step for a prompt of 10 tokens."""
    limit.begin()
    return [limit.take(id_, 10, may_split=True) for id_ in ids]


def test_rows_of_a_group_wait_for_the_others_to_begin_in_one_step() -> None:
    limit = StepLimit()
    limit.add("a", of_group(7, 3))
    limit.add("b", of_group(7, 3))
    limit.add("alone", of_group(8, 1))
    assert taken(limit, "a", "b", "alone", "other") == [0, 0, 10, 10]

    limit.add("c", of_group(7, 3))

    assert taken(limit, "a", "b", "c") == [10, 10, 10]


def test_a_group_waits_a_few_steps_for_a_row_that_does_not_come() -> None:
    limit = StepLimit()
    limit.add("a", of_group(7, 3))
    waited = [taken(limit, "a") for _ in range(4)]

    assert waited == [[0], [0], [0], [10]]
    # What comes later has missed its step.
    limit.add("b", of_group(7, 3))
    assert taken(limit, "b") == [10]


def test_a_group_waits_for_its_own_while_a_later_one_begins() -> None:
    limit = StepLimit()
    limit.add("a", of_group(7, 2))
    limit.add("x", of_group(8, 2))
    limit.add("y", of_group(8, 2))
    assert taken(limit, "a", "x", "y") == [0, 10, 10]

    limit.add("b", of_group(7, 2))

    assert taken(limit, "a", "b") == [10, 10]


def test_prompts_wait_some_steps_while_a_small_batch_has_its_answers_written() -> None:
    limit = StepLimit()
    limit.add("small", None, is_small=True)
    limit.begin()
    assert limit.take("small", 10, may_split=True, goes_first=True) == 10
    assert limit.take("other", 10, may_split=True) == 0

    # Then all have theirs, and wait again.
    waited = [taken(limit, "other") for _ in range(24)]
    assert waited == 11 * [[0]] + [[10]] + 12 * [[0]]

    limit.leave("small")
    assert taken(limit, "other") == [10]


def answered(limit: StepLimit, steps: int, *ids: str) -> list[list[bool]]:
    """Whether each has the next token of its answer, in so many steps."""
    found = []
    for _ in range(steps):
        limit.begin()
        found.append([limit.answers(id_) for id_ in ids])
    return found


def test_answers_of_others_wait_for_a_small_batch_in_a_part_of_the_steps() -> None:
    limit = StepLimit()
    limit.add("small", None, is_small=True)
    steps = answered(limit, 16 + 10 * 41, "small", "other")

    assert steps[:16] == 16 * [[True, False]]
    assert steps[16:].count([True, False]) == 10
    assert steps[16:].count([True, True]) == 10 * 40


def test_live_calls_have_their_answers_beside_small_batches() -> None:
    limit = StepLimit()
    limit.add("small", None, is_small=True)
    limit.add("live", headers(100, is_live=True))

    assert answered(limit, 2, "other", "live") == 2 * [[False, True]]


def test_answers_wait_for_no_small_batch_that_waits_for_its_last_row() -> None:
    limit = StepLimit()
    limit.add("small0", of_group(1, 2), is_small=True)
    assert answered(limit, 1, "other") == [[True]]

    limit.add("small1", of_group(1, 2), is_small=True)
    assert answered(limit, 1, "other") == [[False]]


def test_small_batches_alone_use_up_nothing_of_what_others_would_wait() -> None:
    limit = StepLimit()
    limit.add("small", None, is_small=True)
    answered(limit, 100, "small")

    assert answered(limit, 17, "other") == 16 * [[False]] + [[True]]


def test_live_calls_do_not_wait_for_small_batches() -> None:
    limit = StepLimit()
    limit.add("small", None, is_small=True)
    limit.add("live", headers(100, is_live=True))

    assert taken(limit, "live", "other") == [10, 0]


def test_what_the_core_is_told_of_groups_goes_no_further() -> None:
    assert StepLimit().add("a", {"traceparent": "00-1", **of_group(7, 3)}) == {
        "traceparent": "00-1"
    }


@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(0, 3)), max_size=8),
    st.lists(st.integers(0, 31), max_size=8),
)
def test_no_row_waits_longer_than_a_few_steps(
    groups: list[tuple[int, int]], leave: list[int]
) -> None:
    limit = StepLimit()
    ids = []
    for number, (rows, missing) in enumerate(groups):
        for row in range(max(0, rows - missing)):
            ids.append(f"{number}-{row}")
            limit.add(ids[-1], of_group(number, rows))
    for number in leave:
        if number < len(ids):
            limit.leave(ids[number])
    for _ in range(3):
        limit.begin()

    assert taken(limit, *ids) == [10] * len(ids)
