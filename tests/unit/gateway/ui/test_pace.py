import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.ui.pace import plot, rates, seconds_left
from shared.state.paces import Mark

STEPS = st.lists(
    st.tuples(st.floats(0.1, 500), st.integers(0, 500), st.integers(0, 5000)),
    min_size=1,
    max_size=60,
)


def steady(*, seconds: int, rows: int = 10) -> list[Mark]:
    """So many rows a second, of five tokens each."""
    return [Mark(1000.0 + at, rows * at, 5 * rows * at) for at in range(seconds + 1)]


def test_a_steady_pace_has_one_rate_and_an_exact_end() -> None:
    marks = steady(seconds=400)

    assert rates(marks, 1400) == pytest.approx((10, 50))
    assert seconds_left(marks, 5000, 1400) == pytest.approx((100, 100))


def test_a_pace_that_changes_gives_a_range() -> None:
    marks = [*steady(seconds=300), *(Mark(1300 + at, 3000 + 40 * at, 0) for at in range(1, 61))]

    low, high = seconds_left(marks, 9400, 1360) or (0, 0)

    assert low == pytest.approx(100)
    assert high > 2 * low


def test_nobody_knows_the_end_before_there_is_a_measurement() -> None:
    assert seconds_left([], 10, 1000) is None
    assert seconds_left([Mark(1000, 0, 0)], 10, 1000.5) is None
    assert seconds_left([Mark(1000, 0, 0)], 10, 1100) is None
    assert plot([Mark(1000, 0, 0)], "Requests") is None


@given(STEPS)
def test_a_plot_stays_inside_of_its_frame(steps: list[tuple[float, int, int]]) -> None:
    marks = [Mark(0.0, 0, 0)]
    for seconds, rows, tokens in steps:
        before = marks[-1]
        marks.append(Mark(before.at + seconds, before.rows + rows, before.tokens + tokens))

    for of_tokens in (False, True):
        drawn = plot(marks, "Requests", of_tokens=of_tokens)
        if drawn is None:
            continue
        points = [tuple(map(float, point.split(","))) for point in drawn.line.split()]
        assert all(0 <= x <= drawn.width and 0 <= y <= drawn.height + 0.1 for x, y in points)
        assert points == sorted(points)
        assert "average" in drawn.text


@given(STEPS, st.integers(0, 1000))
def test_the_range_is_a_range(steps: list[tuple[float, int, int]], more: int) -> None:
    marks = [Mark(0.0, 0, 0)]
    for seconds, rows, tokens in steps:
        before = marks[-1]
        marks.append(Mark(before.at + seconds, before.rows + rows, before.tokens + tokens))

    left = seconds_left(marks, marks[-1].rows + more, marks[-1].at)

    assert left is None or 0 <= left[0] <= left[1]
