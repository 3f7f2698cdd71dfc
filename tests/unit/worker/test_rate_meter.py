import pytest

from worker.rate_meter import RateMeter


def _measured(meter: RateMeter, *, seconds: range, rows_per_second: int) -> float:
    for second in seconds:
        meter.measure(second * rows_per_second, second, is_working=True, known_rate=0)
    return meter.rate


def test_a_steady_lane_has_its_rate_within_seconds() -> None:
    assert _measured(RateMeter(), seconds=range(30), rows_per_second=50) == pytest.approx(
        50, rel=0.01
    )


def test_one_odd_second_moves_the_rate_by_a_fifth() -> None:
    meter = RateMeter()
    meter.measure(0, 0, is_working=True, known_rate=100)

    meter.measure(0, 1, is_working=True, known_rate=100)

    assert meter.rate == pytest.approx(80)


def test_a_new_job_begins_with_what_the_one_before_measured() -> None:
    meter = RateMeter()

    meter.measure(7000, 0, is_working=False, known_rate=123)

    assert meter.rate == 123


def test_idle_time_does_not_lower_the_rate() -> None:
    meter = RateMeter()
    meter.measure(500, 0, is_working=False, known_rate=40)

    for second in range(1, 600):
        meter.measure(500, second, is_working=False, known_rate=40)

    assert meter.rate == 40
