"""What an event leaves in its batch's trace: that it was sent, and with the last one, the batch.

The batch's own span is sent here, because an event is told again after every crash.
"""

from collections.abc import Iterator, Mapping

from shared.bus.events import routing_key
from shared.bus.topology import EVENTS_EXCHANGE
from shared.lifecycle import FINAL, Status
from shared.state.outbox import Entry
from shared.tracing import spans
from shared.tracing.span import Attributes, PastSpan, Span
from shared.tracing.trace_context import batch_span_id, of_batch

#: Statuses that are events of the batch's span.
_PHASES = (Status.IN_PROGRESS, Status.FINALIZING, Status.CANCELLING)
_FAILURES = frozenset({Status.FAILED, Status.EXPIRED})
_NUMBERS = {
    "total": "batchyard.rows.total",
    "completed": "batchyard.rows.completed",
    "failed": "batchyard.rows.failed",
    "input_tokens": "gen_ai.usage.input_tokens",
    "output_tokens": "gen_ai.usage.output_tokens",
}


def sending(entry: Entry) -> Span:
    """The span of an event's way to the broker."""
    snapshot = entry.snapshot()
    parent = of_batch(snapshot["id"], snapshot.get("traceparent", ""))
    span = spans.span(f"send {EVENTS_EXCHANGE}", "producer", parent=parent)
    if span.is_recorded:
        noun = "pipeline" if entry.is_of_pipeline else "batch"
        span.set(
            {
                **sent_to(EVENTS_EXCHANGE, routing_key(entry)),
                "cloudevents.event_type": entry.fields["type"],
                f"batchyard.{noun}.id": snapshot["id"],
            }
        )
    return span


def sent_to(exchange: str, key: str) -> Attributes:
    """What the span of a message that goes to an exchange says of it."""
    return {
        "messaging.system": "rabbitmq",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": f"{exchange}:{key}",
        "messaging.rabbitmq.destination.routing_key": key,
    }


def tell_end(entry: Entry) -> None:
    """Send the batch's own span, if the event is its last one. Again, it is the same one."""
    snapshot = entry.snapshot()
    status = Status(snapshot["status"])
    traceparent = snapshot.get("traceparent", "")
    if status not in FINAL or entry.fields["type"] != f"batch.{status}" or not traceparent:
        return
    spans.send(
        PastSpan(
            "batch",
            traceparent,
            batch_span_id(snapshot["id"]),
            began_at=float(snapshot["created_at"]),
            ended_at=int(entry.fields["at_ms"]) / 1000,
            attributes=dict(_attributes(snapshot, status)),
            events=[
                (phase, float(snapshot[f"{phase}_at"]))
                for phase in _PHASES
                if f"{phase}_at" in snapshot
            ],
            error_type=status if status in _FAILURES else "",
        )
    )


def _attributes(snapshot: Mapping[str, str], status: Status) -> Iterator[tuple[str, str | int]]:
    yield "batchyard.batch.id", snapshot["id"]
    yield "batchyard.tenant", snapshot["tenant"]
    yield "batchyard.batch.status", status
    if "model" in snapshot:
        yield "gen_ai.request.model", snapshot["model"]
    for name, attribute in _NUMBERS.items():
        yield attribute, int(snapshot.get(name, 0))
