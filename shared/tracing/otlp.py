"""Sends spans to a collector by OTLP over HTTP, with OpenTelemetry's SDK.

Everything about the collector stands in OpenTelemetry's own variables, which the SDK reads.
"""

import os
from collections.abc import Sequence
from contextvars import ContextVar
from importlib.metadata import version
from types import TracebackType
from typing import Self

from opentelemetry import trace
from opentelemetry.context import Context, attach, detach
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator

from shared.errors import SetupError
from shared.tracing.span import Attributes, Kind, NamedSpan, PastSpan, Span
from shared.tracing.trace_context import trace_id

_PROTOCOL = "http/protobuf"
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_NANOSECONDS = 1_000_000_000
_KINDS = {
    "internal": trace.SpanKind.INTERNAL,
    "server": trace.SpanKind.SERVER,
    "client": trace.SpanKind.CLIENT,
    "producer": trace.SpanKind.PRODUCER,
    "consumer": trace.SpanKind.CONSUMER,
}


class OtlpRecorder:
    """Spans wait in memory, and a thread sends them in groups. Nothing waits for the collector."""

    def __init__(self, process: str) -> None:
        """Raises SetupError for a protocol that is not spoken here."""
        for name in _PROTOCOLS:
            if os.environ.get(name, _PROTOCOL) != _PROTOCOL:
                raise SetupError(f"{name}: only {_PROTOCOL} is supported.")
        self._ids = _Ids()
        resource = {
            "service.namespace": "batchyard",
            "service.name": f"batchyard-{process}",
            "service.version": version("batchyard"),
        }
        self._provider = TracerProvider(resource=Resource.create(resource), id_generator=self._ids)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("batchyard", resource["service.version"])

    def span(self, name: str, kind: Kind, parent: str, links: Sequence[str]) -> Span:
        """A span that has not begun."""
        return _OtlpSpan(self._tracer, name, kind, parent, links)

    def send(self, past: PastSpan) -> None:
        """Record a span that is over, under the id that it names."""
        token = self._ids.next.set(int(past.span_id, 16))
        try:
            made = self._tracer.start_span(
                past.name,
                _context(past.parent),
                attributes=past.attributes,
                start_time=_ns(past.began_at),
            )
        finally:
            self._ids.next.reset(token)
        for name, at in past.events:
            made.add_event(name, timestamp=_ns(at))
        if past.error_type:
            _fail(made, past.error_type)
        made.end(_ns(past.ended_at))

    def current(self) -> str:
        """The `traceparent` of the innermost open span."""
        return _traceparent(trace.get_current_span())

    def flush(self, seconds: float) -> None:
        """Send what was recorded."""
        self._provider.force_flush(round(seconds * 1000))

    def stop(self) -> None:
        """Send what was recorded, and end the thread."""
        self._provider.shutdown()


class _Ids(RandomIdGenerator):
    """Random ids, except for a span whose id is known beforehand."""

    def __init__(self) -> None:
        self.next: ContextVar[int | None] = ContextVar("next_span_id", default=None)

    def generate_span_id(self) -> int:
        return self.next.get() or super().generate_span_id()


class _OtlpSpan(NamedSpan):
    """A span that is recorded from the start of its `with` block to the end."""

    def __init__(
        self, tracer: trace.Tracer, name: str, kind: Kind, parent: str, links: Sequence[str]
    ) -> None:
        self._span = tracer.start_span(
            name,
            _context(parent),
            kind=_KINDS[kind],
            links=[trace.Link(_span_context(link)) for link in links],
        )
        self.traceparent = _traceparent(self._span)
        super().__init__(trace_id(self.traceparent or parent))
        self.is_recorded = self._span.is_recording()

    def __enter__(self) -> Self:
        self._token = attach(trace.set_span_in_context(self._span))
        return super().__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        super().__exit__(kind, error, traceback)
        detach(self._token)
        # The text of an error may quote a prompt, so its class has to do.
        if kind is not None and issubclass(kind, Exception):
            self.fail(kind.__qualname__)
        self._span.end()

    def rename(self, name: str) -> None:
        self._span.update_name(name)

    def set(self, attributes: Attributes) -> None:
        self._span.set_attributes(attributes)

    def add_event(self, name: str, attributes: Attributes, *, at: float) -> None:
        self._span.add_event(name, attributes, _ns(at))

    def fail(self, error_type: str) -> None:
        _fail(self._span, error_type)


def _fail(span: trace.Span, error_type: str) -> None:
    span.set_status(trace.StatusCode.ERROR)
    span.set_attribute("error.type", error_type)


def _context(parent: str) -> Context:
    """What a new span stands below; nothing if `parent` is empty."""
    if not parent:
        return Context()
    return trace.set_span_in_context(trace.NonRecordingSpan(_span_context(parent)), Context())


def _span_context(traceparent: str) -> trace.SpanContext:
    _, trace_id, span_id, flags = traceparent.split("-")
    return trace.SpanContext(
        int(trace_id, 16),
        int(span_id, 16),
        is_remote=True,
        trace_flags=trace.TraceFlags(int(flags, 16)),
    )


def _traceparent(span: trace.Span) -> str:
    if not span.is_recording():
        return ""
    made = span.get_span_context()
    # Only W3C's first flag: the others belong to a later version of the header.
    return f"00-{made.trace_id:032x}-{made.span_id:016x}-{made.trace_flags & 1:02x}"


def _ns(seconds: float) -> int:
    return round(seconds * _NANOSECONDS)
