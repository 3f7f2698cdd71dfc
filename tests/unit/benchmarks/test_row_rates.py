import pytest

from benchmarks.row_rates import rate_of


@pytest.mark.parametrize(
    "seen",
    [
        # One by one; the time of the first is not known.
        [(0.0, 5), *((0.1 * at, 5 + at) for at in range(1, 200))],
        # A hundred at a time, each time in several parts.
        [(0.0, 0)]
        + [
            (10.0 * end + part / 10, 100 * end + 20 * part)
            for end in (1, 2, 3)
            for part in range(5)
        ],
    ],
)
def test_rows_that_come_evenly_or_together_have_the_same_rate(
    seen: list[tuple[float, int]],
) -> None:
    assert rate_of(seen, seen[-1][0]) == pytest.approx(10, rel=0.02)


def test_a_single_burst_in_a_phase_tells_no_rate_of_its_own() -> None:
    seen = [(0.0, 0), (19.0, 40), (19.1, 80), (19.2, 120)]

    assert rate_of(seen, 20.0) == 6.0
