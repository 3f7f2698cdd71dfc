"""Spans of what the dispatcher does: it processes messages, plans, finishes and calls webhooks."""

from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from structlog.contextvars import bind_contextvars

from dispatcher.delivery import Delivery
from dispatcher.sender import Answer
from dispatcher.settlement import Outcome
from shared.bus.topology import SUBMIT_QUEUE
from shared.state import BatchRecord
from shared.state.webhook_deliveries import Due
from shared.tracing import spans
from shared.tracing.span import Span
from shared.tracing.trace_context import of_batch, trace_id

_FAULTS = frozenset({Outcome.BROKEN, Outcome.BROKEN_FOR_GOOD})
_FIRST_REFUSAL = 400


def receiving(delivery: Delivery) -> Span:
    """The span of a message that is handled, below its sender's."""
    envelope = delivery.envelope
    parent, _ = envelope.trace
    if not spans.is_on():
        return spans.named(parent)
    place = f"{envelope.exchange}:{envelope.routing_key}:{SUBMIT_QUEUE}"
    span = spans.entrance(f"process {SUBMIT_QUEUE}", "consumer", parent=parent)
    span.set(
        {
            "messaging.system": "rabbitmq",
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "messaging.destination.name": place,
            "messaging.rabbitmq.destination.routing_key": envelope.routing_key,
            "messaging.message.body.size": len(delivery.body),
        }
    )
    return span


def note_outcome(span: Span, outcome: Outcome) -> None:
    """Say how the handling of a message ended."""
    word = outcome.name.lower()
    span.set({"batchyard.message.outcome": word})
    if outcome in _FAULTS:
        span.fail(word)


def naming(record: BatchRecord) -> Span:
    """No span of its own: the log lines from within it name the batch's trace."""
    return spans.named(record.fields.get("traceparent", ""))


def name_rest(record: BatchRecord) -> None:
    """All further log lines of this task, also those of a failure, name the batch's trace."""
    if traceparent := record.fields.get("traceparent", ""):
        bind_contextvars(trace_id=trace_id(traceparent))


@contextmanager
def step(name: str, record: BatchRecord) -> Iterator[None]:
    """The span of a step that the dispatcher takes with a batch."""
    parent = of_batch(record.id, record.fields.get("traceparent", ""))
    with spans.span(name, parent=parent) as span:
        span.set({"batchyard.batch.id": record.id})
        yield


def calling(due: Due) -> Span:
    """The span of one attempt of a webhook."""
    batch_id = due.event.data.id
    span = spans.span("POST", "client", parent=of_batch(batch_id, due.traceparent))
    if span.is_recorded:
        url = urlsplit(due.url)
        span.set(
            {
                "http.request.method": "POST",
                # The rest of the URL may hold a secret of the receiver's.
                "server.address": url.hostname or "",
                "http.request.resend_count": due.tries,
                f"batchyard.{due.event.about}.id": batch_id,
                "cloudevents.event_type": due.event.type,
            }
        )
    return span


def note_answer(span: Span, answer: Answer) -> None:
    """Say what the receiver answered."""
    if answer.status is None:
        span.fail("timeout" if answer.is_timeout else "no_answer")
        return
    span.set({"http.response.status_code": answer.status})
    if answer.status >= _FIRST_REFUSAL:
        span.fail(str(answer.status))
