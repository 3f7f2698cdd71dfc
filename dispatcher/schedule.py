"""When a webhook that was not taken is sent again. Does no I/O; time and chance are arguments."""

from datetime import UTC
from email.utils import parsedate_to_datetime

from shared.retention import DELIVERY_WINDOW_SECONDS

#: Seconds to the second attempt, the third, and so on: the example of Standard Webhooks.
DELAYS = (5.0, 300.0, 1_800.0, 7_200.0, 18_000.0, 36_000.0, 50_400.0, 72_000.0, 86_400.0)
#: Receivers that came back together should not all be called together.
_SPREAD = 0.1

#: Answers of a receiver that has too much to do, or of the proxy before it.
SLOW_DOWN = frozenset({429, 502, 504})
#: The receiver's word for: never again.
GONE = 410
_FIRST_PAUSE_SECONDS = 5.0
_LONGEST_PAUSE_SECONDS = 300.0
_LONGEST_ASKED_PAUSE_SECONDS = 3600.0


def next_attempt(
    *,
    since: float,
    now: float,
    tries: int,
    chance: float,
    retry_after: float = 0.0,
    delays: tuple[float, ...] = DELAYS,
) -> float | None:
    """When to try again after `tries` failed attempts since `since`; None when the time is over.

    `chance` is between 0 and 1. The last attempt is made at the end of the 72 hours.
    """
    end = since + DELIVERY_WINDOW_SECONDS
    if now >= end:
        return None
    delay = delays[min(tries, len(delays)) - 1] * (1 - _SPREAD + 2 * _SPREAD * chance)
    return min(now + max(delay, retry_after), end)


def pause(slow_answers: int, retry_after: float) -> float:
    """Seconds without any call to an endpoint that has asked so often in a row to slow down."""
    own = min(_LONGEST_PAUSE_SECONDS, _FIRST_PAUSE_SECONDS * 2.0 ** min(slow_answers - 1, 10))
    return max(own, min(retry_after, _LONGEST_ASKED_PAUSE_SECONDS))


def retry_after_seconds(header: str | None, now: float) -> float:
    """What the header says, as seconds or as a date; 0 for nothing that can be read."""
    if header is None:
        return 0.0
    text = header.strip()
    if text.isascii() and text.isdigit():
        return float(text[:9])
    try:
        date = parsedate_to_datetime(text)
    except ValueError:
        return 0.0
    # A date without a zone is UTC.
    seconds = (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp() - now
    return max(0.0, seconds)
