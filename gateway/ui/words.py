"""How the page says things: statuses, times, amounts. Pure."""

from collections.abc import Mapping
from datetime import UTC, datetime

from shared.lifecycle import Status

_MINUTE, _HOUR, _DAY = 60, 3600, 86_400
_STATUSES: Mapping[Status, str] = {
    Status.VALIDATING: "Checking input",
    Status.FAILED: "Failed",
    Status.IN_PROGRESS: "Running",
    Status.FINALIZING: "Writing results",
    Status.COMPLETED: "Completed",
    Status.EXPIRED: "Expired",
    Status.CANCELLING: "Cancelling",
    Status.CANCELLED: "Cancelled",
}
_EVENTS: Mapping[str, str] = {
    "batch.accepted": "Accepted; the input is being checked",
    "batch.in_progress": "The input is fine; its requests may run",
    "batch.finalizing": "All requests have ended; the result files are being written",
    "batch.completed": "Completed; the result files are ready",
    "batch.failed": "Failed",
    "batch.expired": "The completion window closed before all requests had run",
    "batch.cancelling": "Somebody asked to cancel it",
    "batch.cancelled": "Cancelled; what had run is kept",
    "batch.paused": "Paused: nothing new starts",
    "batch.resumed": "Resumed",
    "batch.updated": "Priority or metadata changed",
}
_REASONS: Mapping[str, str] = {
    "not_run": "it was given back before it ran",
    "paused": "the batch was paused",
    "engine_died": "the engine died",
    "engine_unavailable": "the engine did not answer",
    "engine_failed": "the engine could not start",
    "input_lost": "the input was gone",
    "claim_expired": "the lane job fell silent",
    "job_ended": "the lane job ended",
}


def status_text(status: Status, *, is_paused: bool = False) -> str:
    """The status as people say it."""
    return "Paused" if is_paused else _STATUSES[status]


def event_text(kind: str) -> str:
    """What happened, of an event by its name on the bus."""
    return _EVENTS.get(kind, kind)


def reason_text(reason: str | None) -> str:
    """Why a slice was given back."""
    return _REASONS.get(reason or "", "for an unknown reason")


def number(count: float) -> str:
    """With separators, and without digits that say nothing."""
    if count < 10 and count != int(count):  # noqa: PLR2004  # one digit before the point
        return f"{count:.1f}"
    return f"{count:,.0f}"


def counted(count: int, noun: str) -> str:
    """A number with what it counts: `1 batch`, `2 batches`."""
    ending = "es" if noun.endswith("ch") else "s"
    return f"{number(count)} {noun}{'' if count == 1 else ending}"


def compact(count: float) -> str:
    """Short, for axes and cards: 1.2 k, 34 M."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= limit:
            short = count / limit
            return f"{short:.1f} {unit}" if short < 10 else f"{short:.0f} {unit}"  # noqa: PLR2004  # as above
    return number(count)


def size(count: int) -> str:
    """Bytes, in binary units."""
    amount = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:  # noqa: PLR2004  # the binary step
            return f"{amount:.0f} {unit}" if unit == "B" or amount >= 10 else f"{amount:.1f} {unit}"  # noqa: PLR2004
        amount /= 1024
    return f"{amount:.1f} TiB"


def duration(seconds: float) -> str:
    """Two units at most: 45 s, 3 min 20 s, 2 h 5 min, 3 d 4 h."""
    if 0 < seconds < 1:
        return "less than 1 s"
    whole = max(0, round(seconds))
    if whole < _MINUTE:
        return f"{whole} s"
    for unit, name, lower, lower_name in (
        (_DAY, "d", _HOUR, "h"),
        (_HOUR, "h", _MINUTE, "min"),
        (_MINUTE, "min", 1, "s"),
    ):
        if whole >= unit:
            rest = whole % unit // lower
            return f"{whole // unit} {name}" + (f" {rest} {lower_name}" if rest else "")
    return f"{whole} s"


def gpu_time(seconds: float) -> str:
    """A time of GPUs, in seconds with a fraction while it is short."""
    return f"{seconds:.1f} s" if 0 < seconds < _MINUTE else duration(seconds)


def money(value: float, currency: str) -> str:
    """An amount, with digits for what single requests cost."""
    return f"{value:,.{2 if value >= 1 else 4}f} {currency.upper()}"


def percent(part: float) -> str:
    """A part of the whole."""
    return f"{part:.0%}"


def duration_range(low: float, high: float) -> str:
    """From the shortest to the longest time; one of them if they read alike."""
    first, second = _rough(low), _rough(high)
    return f"about {first}" if first == second else f"{first} to {second}"


def when(at: float) -> str:
    """A date and time in UTC."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def machine_time(at: float) -> str:
    """The same for programs."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _rough(seconds: float) -> str:
    """One unit."""
    for unit, name in ((_DAY, "d"), (_HOUR, "h"), (_MINUTE, "min")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.0f} {name}"
    return f"{max(1, round(seconds))} s"
