"""An OTLP collector on this machine, in a thread: it keeps the spans that processes send."""

import gzip
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)


class Collected(NamedTuple):
    """One span; ids are hexadecimal, and times Unix seconds."""

    service: str
    name: str
    kind: str
    trace_id: str
    span_id: str
    parent_id: str
    attributes: Mapping[str, Any]
    #: Names and attributes.
    events: list[tuple[str, Mapping[str, Any]]]
    #: Trace and span.
    links: list[tuple[str, str]]
    has_failed: bool
    began_at: float
    ended_at: float


@dataclass
class Collector:
    """What it has been sent, as it came and read."""

    url: str
    bodies: list[bytes] = field(default_factory=list)

    @property
    def spans(self) -> list[Collected]:
        return [span for body in list(self.bodies) for span in _spans(body)]

    def of_trace(self, trace_id: str) -> list[Collected]:
        return [span for span in self.spans if span.trace_id == trace_id]


@contextmanager
def collecting() -> Iterator[Collector]:
    """A collector; its address goes into OTEL_EXPORTER_OTLP_ENDPOINT."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/v1/traces"
            assert self.headers["content-type"] == "application/x-protobuf"
            body = self.rfile.read(int(self.headers["content-length"]))
            is_packed = self.headers.get("content-encoding") == "gzip"
            collector.bodies.append(gzip.decompress(body) if is_packed else body)
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_response(200)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            """Not among the tests' output."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collector = Collector(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield collector
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _spans(body: bytes) -> Iterator[Collected]:
    for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
        service = _values(resource.resource.attributes)["service.name"]
        for scope in resource.scope_spans:
            for span in scope.spans:
                yield Collected(
                    service,
                    span.name,
                    span.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_").lower(),
                    span.trace_id.hex(),
                    span.span_id.hex(),
                    span.parent_span_id.hex(),
                    _values(span.attributes),
                    [(event.name, _values(event.attributes)) for event in span.events],
                    [(link.trace_id.hex(), link.span_id.hex()) for link in span.links],
                    span.status.code == span.status.STATUS_CODE_ERROR,
                    span.start_time_unix_nano / 1e9,
                    span.end_time_unix_nano / 1e9,
                )


def _values(pairs: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}
