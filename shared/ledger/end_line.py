"""The line of the log that a batch's end leaves: what it took, and what it waited for. Pure."""

from collections.abc import Mapping

from shared.lifecycle import Status
from shared.spent import of_lanes
from shared.tracing.trace_context import trace_id

_COUNTS = ("total", "completed", "failed", "input_tokens", "cached_tokens", "output_tokens")


def end_line(fields: Mapping[str, str]) -> dict[str, object]:
    """The fields of the line, from the record of a batch that has ended. Times are in seconds."""
    status = Status(fields["status"])
    ended_at = _time(fields, f"{status}_at")
    return {
        "batch_id": fields["id"],
        "tenant": fields["tenant"],
        "status": status,
        "door": fields.get("door"),
        "model": fields.get("model"),
        "lane": fields.get("lane"),
        **_trace(fields),
        **{name: int(fields.get(name, 0)) for name in _COUNTS},
        "gpu_seconds": round(sum(of_lanes(fields.get("spent", "")).values()) / 1e6, 3),
        "seconds": _between(_time(fields, "created_at"), ended_at),
        "waits": waits(fields, ended_at),
    }


def waits(fields: Mapping[str, str], ended_at: int | None) -> dict[str, int]:
    """How long each step of the batch's life took.

    `check`: until its input was read and checked. `lane`: until its first slice was claimed.
    `run`: until its last row ended. `write`: until its files were there. What it never came to is
    left out.
    """
    marks = [
        ("check", _time(fields, "created_at")),
        ("lane", _time(fields, "in_progress_at")),
        ("run", _time(fields, "started_at")),
        ("write", _time(fields, "finalizing_at") or _time(fields, "cancelling_at")),
    ]
    reached = [(name, at) for name, at in marks if at is not None]
    ends = [at for _, at in reached[1:]] + [ended_at]
    return {
        name: seconds
        for (name, at), end in zip(reached, ends, strict=True)
        if (seconds := _between(at, end)) is not None
    }


def _trace(fields: Mapping[str, str]) -> dict[str, str]:
    """The id of the trace that the batch's submission belongs to."""
    found = trace_id(fields.get("traceparent", ""))
    return {"trace_id": found} if found else {}


def _time(fields: Mapping[str, str], name: str) -> int | None:
    return int(fields[name]) if name in fields else None


def _between(start: int | None, end: int | None) -> int | None:
    return None if start is None or end is None else max(0, end - start)
