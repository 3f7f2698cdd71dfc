"""Spans on their way to a real collector."""

import time
from collections.abc import Iterator

import pytest
from structlog.contextvars import get_contextvars

from shared.tracing import spans
from shared.tracing.span import PastSpan
from tests.collector import Collector, collecting

_PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    with collecting() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        spans.start("test")
        yield collector
        spans.stop()


def test_a_failed_span_names_the_class_of_its_error_and_nothing_else(collector: Collector) -> None:
    with pytest.raises(ValueError, match="prompt"), spans.span("a", parent=_PARENT):
        raise ValueError("a prompt")
    spans.flush(10)

    [span] = collector.spans
    assert span.has_failed
    assert span.attributes == {"error.type": "ValueError"}
    assert span.events == []
    assert b"prompt" not in b"".join(collector.bodies)


def test_a_span_that_is_sent_again_has_the_same_id(collector: Collector) -> None:
    past = PastSpan("batch", _PARENT, "00f067aa0ba902b7", 1.0, 2.5, {"n": 1}, [("half", 1.5)])
    spans.send(past)
    spans.send(past)
    spans.stop()

    one, other = collector.spans
    assert one == other
    assert (one.span_id, one.parent_id) == ("00f067aa0ba902b7", "b7ad6b7169203331")
    assert (one.began_at, one.ended_at) == (1.0, 2.5)


def test_spans_stand_below_the_open_one_in_another_process(collector: Collector) -> None:
    with spans.entrance("call", "server", parent="") as call:
        handed_over, logged = spans.current(), get_contextvars()
    with spans.span("work", parent=handed_over):
        pass
    spans.flush(10)

    outer, inner = collector.spans
    assert logged == {"trace_id": outer.trace_id}
    assert handed_over == call.traceparent
    assert (inner.trace_id, inner.parent_id) == (outer.trace_id, outer.span_id)


def test_a_collector_that_is_away_delays_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    spans.start("test")
    began = time.monotonic()
    for _ in range(1000):
        with spans.span("a", parent=_PARENT):
            pass
    took = time.monotonic() - began
    spans.stop()
    stopped = time.monotonic() - began

    assert took < 10
    assert stopped < 30
