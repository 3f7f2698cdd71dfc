"""Every message that passes the bus to or from a tenant, with its shape and examples."""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, Field, create_model

from shared.bus import live_messages, messages, open_messages, replays
from shared.bus.asyncapi.samples import BATCH, CREATED_AT, DAY, sample_end, sample_event
from shared.bus.event_shapes import EVENT_TYPES, PIPELINE_EVENT_TYPES, EventShape, EventType
from shared.bus.replies import (
    AcceptedBatch,
    AcceptedReply,
    AddedRequests,
    RejectedReply,
    Reply,
)
from shared.lifecycle import Status

Json = dict[str, Any]
Kind = Literal["received", "reply", "event"]


class Message(NamedTuple):
    """One kind of message: its name is the AMQP property `type`."""

    name: str
    says: str
    kind: Kind
    shape: type[BaseModel]
    examples: Mapping[str, Json]

    @property
    def mode(self) -> Literal["validation", "serialization"]:
        """Defaults may be missing only in what we check."""
        return "validation" if self.kind == "received" else "serialization"


def all_messages() -> list[Message]:
    """Every message that passes the bus to or from a tenant."""
    return [*_received(), *_replies(), *_events()]


def _received() -> Iterator[Message]:
    request = {
        "custom_id": "question-1",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {"model": "tiny-chat", "messages": [{"role": "user", "content": "Hello"}]},
    }
    common = {"schema": "batch.submit/1", "endpoint": "/v1/chat/completions"}
    yield Message(
        messages.SUBMIT,
        "A new batch. The same message id is the same batch, however often it is sent.",
        "received",
        messages.Submission,
        {
            "inline": {
                **common,
                "completion_window": "24h",
                "priority": 5,
                "metadata": {"customer": "17"},
                "input": {"kind": "inline", "requests": [request]},
            },
            "object": {
                **common,
                "input": {
                    "kind": "s3",
                    "bucket": "batchyard",
                    "key": "inbox/acme/questions.jsonl",
                    "etag": "9b2cf535f27731c974343645a3985328",
                    "size": 512,
                },
            },
            "file": {
                **common,
                "not_after": "2026-11-21T00:00:00Z",
                "input": {"kind": "file", "file_id": "file-0123456789abcdefABCDEF"},
            },
            "open": {**common, "input": {"kind": "open", "model": "tiny-chat"}},
        },
    )
    yield Message(
        open_messages.REQUESTS,
        "More requests for one of your own open batches. One that the batch has already, with the "
        "same bytes, is not added again.",
        "received",
        open_messages.MoreRequests,
        {"requests": {"schema": "batch.requests/1", "batch_id": BATCH, "requests": [request]}},
    )
    yield Message(
        open_messages.CLOSE,
        "The end of one of your own open batches: it takes no more requests.",
        "received",
        open_messages.Closing,
        {"close": {"schema": "batch.close/1", "batch_id": BATCH}},
    )
    yield Message(
        live_messages.REQUEST,
        "One live call. It is answered or refused at once, and kept nowhere.",
        "received",
        live_messages.LiveRequest,
        {
            "question": {
                "schema": "live.request/1",
                "endpoint": "/v1/chat/completions",
                "deadline_ms": 1000 * (CREATED_AT + 30),
                "body": request["body"],
            }
        },
    )
    yield Message(
        messages.CANCEL,
        "Cancel one of your own batches. Its results so far are kept.",
        "received",
        messages.Cancellation,
        {"cancel": {"schema": "batch.cancel/1", "batch_id": BATCH}},
    )
    yield Message(
        replays.REPLAY,
        "Events once more, as they were, into the queue that `reply_to` names.",
        "received",
        replays.ReplayRequest,
        {
            "batch": {"schema": "batch.replay/1", "batch_id": BATCH},
            "since": {"schema": "batch.replay/1", "since": "2026-11-20T00:00:00Z"},
        },
    )


def _replies() -> Iterator[Message]:
    accepted = AcceptedReply(
        duplicate=False,
        batch=AcceptedBatch(
            id=BATCH,
            status="validating",
            created_at=CREATED_AT,
            expires_at=CREATED_AT + DAY,
        ),
    )
    extended = AcceptedReply(
        duplicate=False,
        batch=accepted.batch.model_copy(update={"status": Status.IN_PROGRESS}),
        requests=AddedRequests(added=40, repeated=2, total=140),
    )
    param = "input.requests[3].custom_id"
    missing = messages.Reason("schema_invalid", f"{param}: Field required", param)
    rejected = RejectedReply.of(messages.RejectedError([missing]))
    yield Message(
        messages.REPLY,
        "The answer to each message with a `reply_to`. For a submission, `accepted` means that "
        "the batch is durable in Redis and in S3.",
        "reply",
        Reply,
        {
            name: reply.model_dump(mode="json")
            for name, reply in {
                "accepted": accepted,
                "extended": extended,
                "rejected": rejected,
            }.items()
        },
    )
    answered = live_messages.LiveReply(
        status_code=429,
        request_id="req_0123456789abcdef0123456789abcdef",
        headers={"retry-after": "2", "retry-after-ms": "1500"},
        body={
            "error": {
                "message": "Rate limit reached.",
                "type": "requests",
                "param": None,
                "code": "rate_limit_exceeded",
            }
        },
    )
    yield Message(
        live_messages.REPLY,
        "The answer to a live call: what the same call over HTTP would have got.",
        "reply",
        live_messages.LiveReply,
        {"refused": answered.model_dump(mode="json")},
    )
    replayed = replays.ReplayedReply(batches=1, events=4, next_since=None)
    unknown = messages.Reason(
        "unknown_batch", f"No events of a batch with id '{BATCH}' are kept.", "batch_id"
    )
    unreplayed = RejectedReply.of(messages.RejectedError([unknown]))
    yield Message(
        replays.REPLAYED,
        "The last message of an answer to a replay request, after the events.",
        "reply",
        replays.ReplayReply,
        {reply.status: reply.model_dump(mode="json") for reply in (replayed, unreplayed)},
    )


def _events() -> Iterator[Message]:
    for sequence, (name, event) in enumerate(EVENT_TYPES.items(), start=1):
        yield Message(
            name,
            event.when,
            "event",
            _enveloped(name, event),
            {"structured": sample_event(name, event, sequence)},
        )
    for name, event in PIPELINE_EVENT_TYPES.items():
        shape = _enveloped(name, event)
        yield Message(name, event.when, "event", shape, {"structured": sample_end(name)})


def _enveloped(name: str, event: EventType) -> type[BaseModel]:
    """The envelope around this event's data; the title of its schema is the model's name."""
    title = "".join(word.capitalize() for word in re.split(r"[._]", name))
    data = Field(json_schema_extra=_of_status(event.status)) if event.status else Field()
    fields: dict[str, Any] = {"type": (Literal[name], ...), "data": (event.data, data)}
    return create_model(title, __base__=EventShape, __doc__=event.when, **fields)


def _of_status(status: Status) -> Callable[[Json], None]:
    def narrow(schema: Json) -> None:
        # Beside a `$ref` some validators read nothing else.
        whole = {"$ref": schema.pop("$ref")}
        schema["allOf"] = [whole, {"properties": {"status": {"const": status.value}}}]

    return narrow
