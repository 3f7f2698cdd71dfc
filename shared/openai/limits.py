"""OpenAI's words for the limits that a tenant reaches, and words like them for our own. No I/O."""

import math
from collections.abc import Mapping
from typing import Literal, NamedTuple

_SECOND, _MINUTE = 1000, 60_000
#: What each rate limit counts, in OpenAI's words.
RATE_NAMES = {
    "requests": "requests per min (RPM)",
    "files": "requests to files and uploads per min",
    "batches": "batches per hour",
    "live": "live requests per min (RPM)",
    "live-tokens": "tokens of live requests per min (TPM)",
}
#: What a tenant may have at once, or in a day.
Amount = Literal[
    "requests",
    "tokens",
    "kept_batches",
    "stored_bytes",
    "event_streams",
    "downloads",
    "engine_deaths",
    "live_calls",
]


class _Words(NamedTuple):
    limit: str
    unit: str
    code: str
    advice: str


_AMOUNTS: Mapping[Amount, _Words] = {
    "requests": _Words(
        "Enqueued request",
        "enqueued requests",
        "request_limit_exceeded",
        "Please try again once some in_progress batches have been completed.",
    ),
    "tokens": _Words(
        "Enqueued token",
        "enqueued tokens",
        "token_limit_exceeded",
        "Please try again once some in_progress batches have been completed.",
    ),
    "kept_batches": _Words(
        "Kept batch",
        "batches that are kept",
        "kept_batch_limit_exceeded",
        "Batches are kept for some time after their end. Please try again once older ones have "
        "been forgotten, or ask the operator to raise the limit.",
    ),
    "stored_bytes": _Words(
        "Storage",
        "bytes of files and uploads",
        "storage_limit_exceeded",
        "Please delete files that you no longer need.",
    ),
    "event_streams": _Words(
        "Event stream",
        "open event streams",
        "event_stream_limit_exceeded",
        "Please close a stream that you no longer need.",
    ),
    "downloads": _Words(
        "Download",
        "downloads at once",
        "download_limit_exceeded",
        "Please try again once one of them has ended.",
    ),
    "live_calls": _Words(
        "Live call",
        "live calls at once",
        "live_call_limit_exceeded",
        "Please try again once one of them has ended.",
    ),
    "engine_deaths": _Words(
        "Engine death",
        "engines in a day that died of your requests",
        "engine_death_limit_exceeded",
        "Please find these requests by the code engine_died in the error files, and try again "
        "after midnight UTC without them.",
    ),
}


def amount_code(amount: Amount) -> str:
    """The error code for a limit that is reached."""
    return _AMOUNTS[amount].code


def amount_text(
    amount: Amount, *, tenant: str, limit: int, used: int, model: str | None = None
) -> str:
    """Which limit the tenant has reached, what is used of it, and what to do.

    `model` is the one that tokens are counted for; None if it is not known yet.
    """
    words = _AMOUNTS[amount]
    of_model = f" for {model}" if model else ""
    return (
        f"{words.limit} limit reached{of_model} in organization {tenant}. "
        f"Limit: {limit:,} {words.unit}. Used: {used:,}. {words.advice}"
    )


def rate_text(*, tenant: str, what: str, limit: int, wait_seconds: float) -> str:
    """Why a call is refused; `what` is one of RATE_NAMES."""
    return (
        f"Rate limit reached for organization {tenant} on {what}: Limit {limit:,}, Used {limit:,}. "
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
