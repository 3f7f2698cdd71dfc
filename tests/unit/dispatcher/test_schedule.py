from datetime import UTC, datetime
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.schedule import (
    DELAYS,
    next_attempt,
    pause,
    retry_after_seconds,
)
from shared.retention import DELIVERY_WINDOW_SECONDS

_HOUR = 3600.0


def test_a_receiver_that_never_answers_is_tried_ten_times_in_72_hours() -> None:
    at: float | None = 0.0
    times = []
    while at is not None:
        times.append(at)
        at = next_attempt(since=0.0, now=at, tries=len(times), chance=0.5)

    assert times[:4] == [0.0, 5.0, 305.0, 2105.0]
    assert [round(time / _HOUR, 1) for time in times[4:]] == [2.6, 7.6, 17.6, 31.6, 51.6, 72.0]
    assert times[-1] == DELIVERY_WINDOW_SECONDS


@given(
    tries=st.integers(1, 20), chance=st.floats(0, 1), now=st.floats(0, DELIVERY_WINDOW_SECONDS - 1)
)
def test_the_next_attempt_is_later_and_within_the_window(
    tries: int, chance: float, now: float
) -> None:
    at = next_attempt(since=0.0, now=now, tries=tries, chance=chance)

    assert at is not None
    assert now < at <= DELIVERY_WINDOW_SECONDS


def test_chance_spreads_a_delay_by_a_tenth_to_either_side() -> None:
    delays = [next_attempt(since=0.0, now=0.0, tries=2, chance=chance) for chance in (0.0, 1.0)]

    assert delays == [pytest.approx(270), pytest.approx(330)]


def test_what_the_receiver_asks_for_counts_when_it_is_longer() -> None:
    assert next_attempt(since=0.0, now=10.0, tries=1, chance=0.5, retry_after=60.0) == 70.0
    assert next_attempt(since=0.0, now=10.0, tries=1, chance=0.5, retry_after=1.0) == 15.0
    forever = next_attempt(since=0.0, now=10.0, tries=1, chance=0.5, retry_after=1e9)
    assert forever == DELIVERY_WINDOW_SECONDS


def test_after_the_window_there_is_none() -> None:
    assert next_attempt(since=0.0, now=DELIVERY_WINDOW_SECONDS, tries=1, chance=0.5) is None


def test_more_tries_than_delays_wait_for_the_longest() -> None:
    tries = len(DELAYS) + 5

    assert next_attempt(since=100.0, now=100.0, tries=tries, chance=0.5) == 100.0 + 24 * _HOUR


@pytest.mark.parametrize(
    ("slow", "asked", "seconds"),
    [(1, 0.0, 5.0), (2, 0.0, 10.0), (9, 0.0, 300.0), (10_000, 0.0, 300.0)],
)
def test_pauses_grow_and_end(slow: int, asked: float, seconds: float) -> None:
    assert pause(slow, asked) == seconds


def test_a_pause_is_what_is_asked_for_but_no_longer_than_an_hour() -> None:
    assert pause(1, 60.0) == 60.0
    assert pause(1, 1e9) == _HOUR


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, 0.0),
        ("7", 7.0),
        (" 7 ", 7.0),
        ("-7", 0.0),
        ("soon", 0.0),
        ("", 0.0),
        (f"Wed, 21 Oct {'9' * 20} 07:28:00 GMT", 0.0),
        ("9" * 400, 999_999_999.0),
        (format_datetime(datetime.fromtimestamp(1090, UTC), usegmt=True), 90.0),
        (format_datetime(datetime.fromtimestamp(1090, UTC).replace(tzinfo=None)), 90.0),
        (format_datetime(datetime.fromtimestamp(90, UTC), usegmt=True), 0.0),
    ],
)
def test_retry_after_is_seconds_or_a_date(header: str | None, seconds: float) -> None:
    assert retry_after_seconds(header, now=1000.0) == seconds


@given(st.text(max_size=60))
def test_no_header_breaks_it(header: str) -> None:
    assert retry_after_seconds(header, now=1000.0) >= 0
