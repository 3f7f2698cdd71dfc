"""How the commands say durations, sizes, rates and times. Pure."""

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

_MINUTE, _HOUR, _DAY = 60, 3600, 86_400
#: A duration is told in the largest unit of which it has at least two.
_UNITS = ((_DAY, "d"), (_HOUR, "h"), (_MINUTE, "min"), (1, "s"))
_SHORT_SECONDS = 10
_KILO = 1024
_SIZES = ("bytes", "KiB", "MiB", "GiB", "TiB")
_WHOLE_RATE = 10


def duration_text(seconds: float) -> str:
    """For example `45 s`, `3 min` or `26 h`."""
    size, name = _unit(seconds)
    return f"{max(0, round(seconds / size))} {name}"


def eta_text(low: float, high: float) -> str:
    """How long it still takes, as a range: `4 to 7 min left`, or `about 5 min left`."""
    if high < _SHORT_SECONDS:
        return "a few seconds left"
    (low_size, low_name), (high_size, high_name) = _unit(low), _unit(high)
    first, last = max(1, math.floor(low / low_size)), max(1, math.ceil(high / high_size))
    if low_name != high_name:
        return f"{first} {low_name} to {last} {high_name} left"
    if last - first <= 1:
        return f"about {last} {high_name} left"
    return f"{first} to {last} {high_name} left"


def bytes_text(count: int) -> str:
    """For example `512 bytes` or `3.4 MiB`."""
    if count < _KILO:
        return f"{count} bytes"
    power = min(int(math.log2(count)) // 10, len(_SIZES) - 1)
    return f"{count / _KILO**power:.1f} {_SIZES[power]}"


def rate_text(rows_per_second: float) -> str:
    """For example `120 rows/s` or `0.5 rows/s`."""
    number = f"{rows_per_second:,.{0 if rows_per_second >= _WHOLE_RATE else 1}f}"
    return f"{number} rows/s"


def time_text(seconds: int | None) -> str:
    """Unix seconds in UTC; `-` for None."""
    if seconds is None:
        return "-"
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")


def day_text(seconds: int) -> str:
    """The day of these Unix seconds in UTC."""
    return datetime.fromtimestamp(seconds, UTC).date().isoformat()


def rows_text(batch: Mapping[str, Any]) -> str:
    """How far a batch is: `40/100`, or `-` before its input was read."""
    counts = batch["request_counts"]
    if not counts["total"]:
        return "-"
    return f"{counts['completed'] + counts['failed']}/{counts['total']}"


def status_text(batch: Mapping[str, Any]) -> str:
    """The status, and whether the batch is paused."""
    return f"{batch['status']} (paused)" if batch.get("paused") else str(batch["status"])


def _unit(seconds: float) -> tuple[int, str]:
    return next((unit for unit in _UNITS if seconds >= 2 * unit[0]), _UNITS[-1])
