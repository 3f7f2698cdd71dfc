from hypothesis import given
from hypothesis import strategies as st

from worker.engine_numbers import CoreNumbers
from worker.live_control import (
    LEAST_PROMPT_TOKENS,
    LOOK_SECONDS,
    MOST_PROMPT_TOKENS,
    QUIET_SECONDS,
    Goals,
    LiveControl,
    Yielding,
)

SEATS, LEAST = 64, 2
GOALS = Goals(ttft=0.5, tpot=0.05)


def a_control(goals: Goals = GOALS) -> LiveControl:
    return LiveControl(SEATS, goals, LEAST)


def missed(control: LiveControl, times: int, *, in_use: int = SEATS) -> int:
    """The limit after so many looks at missed goals."""
    limit = in_use
    for look in range(times):
        control.note_first(10.0)
        limit = control.limit(min(limit, in_use), (look + 1) * LOOK_SECONDS)
    return limit


def test_without_live_calls_batches_have_all_seats() -> None:
    assert a_control().limit(SEATS, 1000.0) == SEATS


def test_a_missed_goal_leaves_room_and_a_kept_one_gives_it_back_slowly() -> None:
    control = a_control()
    control.begin("live", 0.0)

    low = missed(control, 3)
    control.note_next(0.01)
    after = control.limit(low, 4 * LOOK_SECONDS)

    assert low < SEATS / 2
    assert 0 < after - low <= SEATS / 16


def test_one_long_step_is_no_missed_goal() -> None:
    control = a_control()
    control.begin("live", 0.0)
    for seconds in (0.2, *[0.01] * 9):
        control.note_next(seconds)
    kept = control.limit(SEATS, LOOK_SECONDS)
    for seconds in (0.2, *[0.06] * 9):
        control.note_next(seconds)

    assert kept == SEATS
    assert control.limit(SEATS, 2 * LOOK_SECONDS) < SEATS


def test_batches_never_lose_all_seats() -> None:
    control = a_control()
    control.begin("live", 0.0)

    assert missed(control, 100) == LEAST


def test_seats_that_nobody_used_come_back_slowly_too() -> None:
    control = a_control()
    control.begin("live", 0.0)

    assert missed(control, 1, in_use=10) <= 10


def test_batches_fill_the_engine_seconds_after_the_last_live_call() -> None:
    control = a_control()
    control.begin("live", 0.0)
    low = missed(control, 5)
    control.end("live", 10.0)

    assert control.limit(low, 10.0 + QUIET_SECONDS / 2) < SEATS
    assert control.limit(low, 10.0 + QUIET_SECONDS) == SEATS


def test_the_next_live_call_finds_what_the_last_one_has_taught() -> None:
    control = a_control()
    control.begin("live", 0.0)
    low = missed(control, 5)
    control.end("live", 10.0)
    assert control.limit(SEATS, 20.0) == SEATS

    control.begin("next", 30.0)

    assert control.limit(SEATS, 30.0) == low


def test_what_was_taught_long_ago_is_forgotten() -> None:
    control = a_control()
    control.begin("live", 0.0)
    missed(control, 5)
    control.end("live", 10.0)

    control.begin("next", 1000.0)

    assert control.limit(SEATS, 1000.0) == SEATS


def test_a_full_cache_is_a_missed_goal_while_live_calls_run() -> None:
    control = a_control(Goals())
    control.note_core(CoreNumbers(kv_usage=1.0))
    control.begin("live", 0.0)
    assert control.limit(SEATS, LOOK_SECONDS) == SEATS

    control.note_core(CoreNumbers(kv_usage=0.99))

    assert control.limit(SEATS, 2 * LOOK_SECONDS) < SEATS


def test_a_row_that_was_preempted_is_a_missed_goal_while_live_calls_run() -> None:
    control = a_control(Goals())
    control.note_core(CoreNumbers(preemptions=3))
    control.begin("live", 0.0)
    control.note_core(CoreNumbers(preemptions=3))
    assert control.limit(SEATS, LOOK_SECONDS) == SEATS

    control.note_core(CoreNumbers(preemptions=4))

    assert control.limit(SEATS, 2 * LOOK_SECONDS) < SEATS


def after_hits(*hits: float, kv_usage: float) -> int:
    """The limit when so large parts of prompts were found in the prefix cache, look by look."""
    control = a_control(Goals())
    control.begin("live", 0.0)
    limit, found, tokens = SEATS, 0, 1000
    for look, part in enumerate(hits, 1):
        found += int(part * tokens)
        numbers = CoreNumbers(prefix_queries=look * tokens, prefix_hits=found, kv_usage=kv_usage)
        control.note_core(numbers)
        limit = control.limit(limit, look * LOOK_SECONDS)
    return limit


def test_a_full_cache_that_loses_what_rows_share_is_a_missed_goal() -> None:
    assert after_hits(*[0.6] * 20, kv_usage=0.9) == SEATS
    assert after_hits(*[0.6] * 20, 0.1, kv_usage=0.9) < SEATS


def test_other_prompts_in_a_cache_with_room_are_no_missed_goal() -> None:
    assert after_hits(*[0.6] * 20, 0.1, kv_usage=0.5) == SEATS
    assert after_hits(*[0.0] * 20, kv_usage=0.9) == SEATS


def test_as_many_seats_stay_free_as_live_calls_came_at_once_of_late() -> None:
    control = a_control()
    for number in range(6):
        control.begin(f"{number}", 0.0)
    for number in range(6):
        control.end(f"{number}", 1.0)

    assert control.reserve(1.0) == 6
    assert 0 < control.reserve(31.0) < 6
    assert control.reserve(61.0) == 0


def test_as_much_of_the_cache_stays_free_as_live_calls_had_at_once_of_late() -> None:
    control = LiveControl(SEATS, GOALS, yielding=Yielding(reserve=0.25), kv_tokens=1000)
    control.begin("one", 0.0, tokens=100)
    control.begin("two", 0.0, tokens=60)
    assert control.kv_reserve(0.0) == 0

    control.end("one", 1.0)

    assert 90 < control.kv_reserve(1.0) <= 100
    assert 0 < control.kv_reserve(15.0) < 90
    assert control.kv_reserve(61.0) == 0
    control.begin("giant", 61.0, tokens=5000)
    control.end("giant", 61.0)
    assert control.kv_reserve(61.0) == 0.25 * 1000 - 60


def test_the_operator_bounds_what_stays_free() -> None:
    control = LiveControl(SEATS, GOALS, yielding=Yielding(reserve=0.1))
    for number in range(SEATS):
        control.begin(f"{number}", 0.0)

    assert control.reserve(0.0) == int(0.1 * SEATS)


def test_close_to_the_end_of_a_window_the_operator_decides_who_gives_way() -> None:
    always, not_then = (
        LiveControl(SEATS, GOALS, yielding=Yielding(deadline_seconds=near)) for near in (None, 60.0)
    )

    assert always.gives_way(earliest_end=1.0, now=0.0)
    assert not_then.gives_way(earliest_end=61.0, now=0.0)
    assert not not_then.gives_way(earliest_end=60.0, now=0.0)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["begin", "end", "first", "next", "kv", "limit"]),
            st.integers(0, 200),
            st.floats(0, 5),
        ),
        max_size=60,
    )
)
def test_whatever_happens_the_limit_stays_within_its_bounds(
    steps: list[tuple[str, int, float]],
) -> None:
    control, now = a_control(), 0.0
    for what, number, value in steps:
        now += value
        match what:
            case "begin":
                control.begin(f"{number}", now)
            case "end":
                control.end(f"{number}", now)
            case "first":
                control.note_first(value)
            case "next":
                control.note_next(value)
            case "kv":
                control.note_core(CoreNumbers(kv_usage=value))
            case _:
                pass
        assert LEAST <= control.limit(number, now) <= SEATS
        assert 0 <= control.reserve(now) <= SEATS // 2


def test_on_a_simulated_engine_live_calls_have_their_goal_and_batches_most_of_the_rest() -> None:
    """A step takes longer with each row, as on a processor: the goal allows 50 of 64 rows."""
    control, now, rows = a_control(), 0.0, SEATS
    control.begin("live", now)
    late = steps = computed = 0
    while now < 120.0:
        step = 0.010 + 0.0008 * rows
        now += step
        control.note_next(step)
        limit = control.limit(rows, now)
        # A row in twenty ends with each step, and others follow as far as they may.
        rows = max(limit, rows - max(1, rows // 20))
        steps, late, computed = steps + 1, late + (step > 0.05), computed + rows

    assert late / steps < 0.2
    assert computed / steps > 0.7 * 50


def test_steps_have_fewer_prompts_of_batches_while_a_goal_is_missed() -> None:
    control = a_control()
    control.begin("live", 0.0)
    assert control.prompt_tokens == MOST_PROMPT_TOKENS

    missed(control, 2)
    low = control.prompt_tokens
    control.note_next(0.01)
    control.limit(SEATS, 3 * LOOK_SECONDS)

    assert low < MOST_PROMPT_TOKENS / 2 + 1
    assert 0 < control.prompt_tokens - low <= MOST_PROMPT_TOKENS / 16
    missed(control, 100)
    assert control.prompt_tokens == LEAST_PROMPT_TOKENS
