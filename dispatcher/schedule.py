"""When a webhook that failed is sent again. Does no I/O; time and chance are arguments."""

from datetime import UTC
from email.utils import parsedate_to_datetime

from shared.retention import DELIVERY_WINDOW_SECONDS

#: Seconds before the second attempt, the third, and so on, as in the example of Standard Webhooks.
DELAYS = (5.0, 300.0, 1_800.0, 7_200.0, 18_000.0, 36_000.0, 50_400.0, 72_000.0, 86_400.0)
#: Spreads attempts, so that receivers that come back together are not all called together.
_SPREAD = 0.1

#: Statuses of a receiver that is overloaded, or of the proxy in front of it.
SLOW_DOWN = frozenset({429, 502, 504})
#: The receiver wants no more deliveries.
GONE = 410
_FIRST_PAUSE_SECONDS = 5.0
_MAX_PAUSE_SECONDS = 300.0
_MAX_REQUESTED_PAUSE_SECONDS = 3600.0


def next_attempt(
    *,
    since: float,
    now: float,
    tries: int,
    chance: float,
    retry_after: float = 0.0,
    delays: tuple[float, ...] = DELAYS,
) -> float | None:
    """When to try again after `tries` failed attempts since `since`; None if time is up.

    `chance` is between 0 and 1. The last attempt is made at the end of the 72 hours.
    """
    end = since + DELIVERY_WINDOW_SECONDS
    if now >= end:
        return None
    delay = delays[min(tries, len(delays)) - 1] * (1 - _SPREAD + 2 * _SPREAD * chance)
    return min(now + max(delay, retry_after), end)


def pause(slow_answers: int, retry_after: float) -> float:
    """Seconds without a call to an endpoint after so many consecutive "slow down" answers."""
    own = min(_MAX_PAUSE_SECONDS, _FIRST_PAUSE_SECONDS * 2.0 ** min(slow_answers - 1, 10))
    return max(own, min(retry_after, _MAX_REQUESTED_PAUSE_SECONDS))


def retry_after_seconds(header: str | None, now: float) -> float:
    """The header's seconds, or the seconds until its date; 0 if it cannot be read."""
    if header is None:
        return 0.0
    text = header.strip()
    if text.isascii() and text.isdigit():
        return float(text[:9])
    try:
        date = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return 0.0
    # A date without a zone is UTC.
    seconds = (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp() - now
    return max(0.0, seconds)
