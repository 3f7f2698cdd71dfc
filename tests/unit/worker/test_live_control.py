from hypothesis import given
from hypothesis import strategies as st

from worker.live_control import LOOK_SECONDS, QUIET_SECONDS, Goals, LiveControl

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
    control.note_kv(1.0)
    control.begin("live", 0.0)
    assert control.limit(SEATS, LOOK_SECONDS) == SEATS

    control.note_kv(0.99)

    assert control.limit(SEATS, 2 * LOOK_SECONDS) < SEATS


def test_as_many_seats_stay_free_as_live_calls_came_at_once_of_late() -> None:
    control = a_control()
    for number in range(6):
        control.begin(f"{number}", 0.0)
    for number in range(6):
        control.end(f"{number}", 1.0)

    assert control.reserve(1.0) == 6
    assert 0 < control.reserve(31.0) < 6
    assert control.reserve(61.0) == 0


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
                control.note_kv(value)
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
