import pytest

from dispatcher.round_pace import BURST, PAUSE_SECONDS, RoundPace


def test_after_a_quiet_time_some_rounds_follow_each_other_at_once() -> None:
    pace = RoundPace()

    for number in range(BURST):
        assert pace.rest(10.0 + number / 1000) == 0
        pace.made(10.0 + number / 1000, 0.006)

    assert pace.rest(10.004) == pytest.approx(PAUSE_SECONDS - 0.004)


def test_while_bells_ring_all_the_time_no_round_waits_for_more_than_a_pause() -> None:
    pace, now, rounds = RoundPace(), 0.0, 0

    while now < 30.0:
        rest = pace.rest(now)
        assert rest <= PAUSE_SECONDS
        now += rest + 0.006
        pace.made(now, 0.006)
        rounds += 1

    assert 0.95 < rounds * PAUSE_SECONDS / 30.0 < 1.05


def test_rounds_that_are_soon_over_come_oftener() -> None:
    pace, now, rounds = RoundPace(), 0.0, 0

    while now < 30.0:
        now += pace.rest(now) + 0.001
        pace.made(now, 0.001)
        rounds += 1

    # A fifth of the time.
    assert 0.19 < rounds * 0.001 / 30.0 < 0.21


def test_small_batches_one_after_the_other_wait_for_no_round() -> None:
    pace, now = RoundPace(), 0.0

    # Five rounds for each: to plan it, to make it ready, to finish it, and after its last two.
    for _ in range(1000):
        now += 0.02
        assert pace.rest(now) == 0
        pace.made(now, 0.003)
