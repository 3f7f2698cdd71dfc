import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.client.pace import Pace


def test_there_is_no_rate_before_something_is_done() -> None:
    pace = Pace()
    pace.note(0, at=0)

    assert pace.rate(now=100) is None
    assert pace.seconds_left(10, now=100) is None


def test_a_steady_rate_gives_a_narrow_range() -> None:
    pace = Pace()
    for second in range(121):
        pace.note(10 * second, at=second)

    assert pace.rate(now=120) == pytest.approx(10)
    low, high = pace.seconds_left(2400, now=120) or (0, 0)
    assert low == pytest.approx(120)
    assert high == pytest.approx(120)


def test_a_batch_that_became_slower_has_a_range() -> None:
    pace = Pace()
    for second in range(61):
        pace.note(100 * second, at=second)
    for second in range(61, 81):
        pace.note(6000 + (second - 60), at=second)

    low, high = pace.seconds_left(7000, now=80) or (0, 0)

    assert low == pytest.approx(980 / 75.25, rel=0.01)
    assert high == pytest.approx(980, rel=0.01)


def test_a_batch_that_stands_still_has_no_rate_any_more() -> None:
    pace = Pace()
    pace.note(0, at=0)
    pace.note(50, at=10)

    assert pace.rate(now=20) == pytest.approx(2.5)
    assert pace.rate(now=500) is None


@given(st.lists(st.tuples(st.floats(0.001, 1000), st.integers(0, 1000)), max_size=50))
def test_the_shortest_time_is_never_longer_than_the_longest(
    steps: list[tuple[float, int]],
) -> None:
    pace, now, done = Pace(), 0.0, 0
    for seconds, rows in steps:
        now, done = now + seconds, done + rows
        pace.note(done, now)

    left = pace.seconds_left(done + 10, now + 1)

    assert left is None or 0 < left[0] <= left[1]
