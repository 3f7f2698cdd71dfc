"""OpenAI's words for the limits that a tenant reaches. Does no I/O."""

import math
from typing import Literal

_SECOND, _MINUTE = 1000, 60_000
_QUEUES = {"requests": "request", "tokens": "token"}
#: What each rate limit counts, in OpenAI's words.
RATE_NAMES = {
    "requests": "requests per min (RPM)",
    "files": "requests to files and uploads per min",
    "batches": "batches per hour",
}


def queue_code(queue: Literal["requests", "tokens"]) -> str:
    """The error code for a full queue."""
    return f"{_QUEUES[queue]}_limit_exceeded"


def queue_text(
    queue: Literal["requests", "tokens"], *, tenant: str, model: str | None, limit: int
) -> str:
    """Why the batch may not run: the running batches of the tenant hold as much as they may.

    `model` is None if it is not known yet.
    """
    of_model = f" for {model}" if model else ""
    return (
        f"Enqueued {_QUEUES[queue]} limit reached{of_model} in organization {tenant}. "
        f"Limit: {limit:,} enqueued {queue}. "
        "Please try again once some in_progress batches have been completed."
    )


def rate_text(*, tenant: str, what: str, limit: int, wait_seconds: float) -> str:
    """Why a call is refused; `what` is one of RATE_NAMES."""
    return (
        f"Rate limit reached for organization {tenant} on {what}: Limit {limit:,}. "
        f"Please try again in {go_duration(wait_seconds)}."
    )


def go_duration(seconds: float) -> str:
    """A duration in Go's notation, rounded up to the millisecond: `6ms`, `1.5s`, `6m0s`."""
    milliseconds = math.ceil(seconds * _SECOND)
    if milliseconds < _SECOND:
        return f"{milliseconds}ms" if milliseconds else "0s"
    minutes, rest = divmod(milliseconds, _MINUTE)
    shown = f"{rest / _SECOND:.3f}".rstrip("0").rstrip(".") + "s"
    if minutes == 0:
        return shown
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes}m{shown}" if hours else f"{minutes}m{shown}"
