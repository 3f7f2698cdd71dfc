"""Spans of this process, and the one switch for them.

While the switch is off, OpenTelemetry is not even imported, and a span does nothing but name its
trace in the log, if a client has begun one. No span has contents of requests or results, nor the
text of an error.
"""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from shared.tracing.span import Kind, NamedSpan, PastSpan, Span
from shared.tracing.trace_context import trace_id

if TYPE_CHECKING:
    from shared.tracing.otlp import OtlpRecorder

#: Either one names the collector; OpenTelemetry's own variables.
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


_UNRECORDED = Span()
_recorder: "OtlpRecorder | None" = None


def start(process: str) -> None:
    """Record the spans of this process from now on, if its environment names a collector.

    Raises SetupError.
    """
    global _recorder  # noqa: PLW0603  # the switch of the whole process
    is_disabled = os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
    if _recorder is None and any(map(os.environ.get, _ENDPOINTS)) and not is_disabled:
        from shared.tracing.otlp import OtlpRecorder  # noqa: PLC0415  # only where it is on

        _recorder = OtlpRecorder(process)


def is_on() -> bool:
    """Whether spans are recorded."""
    return _recorder is not None


def span(name: str, kind: Kind = "internal", *, parent: str, links: Sequence[str] = ()) -> Span:
    """A span below `parent`; nobody records it if that is empty."""
    if _recorder is None or not parent:
        return named(parent)
    return _recorder.span(name, kind, parent, [link for link in links if link])


def named(traceparent: str) -> Span:
    """No span of its own: the log lines from within it name the trace."""
    return NamedSpan(trace_id(traceparent)) if traceparent else _UNRECORDED


def entrance(name: str, kind: Kind, *, parent: str) -> Span:
    """A span with which work enters: below `parent`, or the first one of a new trace."""
    return named(parent) if _recorder is None else _recorder.span(name, kind, parent, ())


def linked(name: str, *, links: Sequence[str]) -> Span:
    """The first span of a trace of its own, with links to others; nobody records it without any."""
    found = [link for link in links if link]
    return (
        _UNRECORDED
        if _recorder is None or not found
        else _recorder.span(name, "internal", "", found)
    )


def send(past: PastSpan) -> None:
    """Record a span that is over, unless it has no parent."""
    if _recorder is not None and past.parent:
        _recorder.send(past)


def current() -> str:
    """The `traceparent` of the innermost span that is open here; empty if nobody records it."""
    return "" if _recorder is None else _recorder.current()


def flush(seconds: float) -> None:
    """Send what was recorded, and wait for it no longer than this. It blocks."""
    if _recorder is not None:
        _recorder.flush(seconds)


def stop() -> None:
    """Send what was recorded, and record nothing more. It blocks."""
    global _recorder  # noqa: PLW0603  # as above
    if _recorder is not None:
        _recorder.stop()
        _recorder = None
