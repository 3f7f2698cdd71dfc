"""The AMQP properties and headers of messages, as schemas."""

import re
from typing import Any

from shared.bus import live_messages, messages, replays, topology
from shared.bus.asyncapi.message_list import Kind
from shared.bus.event_shapes import EventShape
from shared.bus.received import (
    CONTENT_TYPE,
    MAX_CORRELATION_ID,
    MAX_HEADER_BYTES,
    PERSISTENT,
    RECEIVED,
)

_TEXT = {"type": "string"}
#: Our own field: AsyncAPI describes AMQP headers, but has no field for AMQP properties.
_PROPERTIES = "x-amqp-properties"
_EVENT_MEDIA = "application/cloudevents+json; charset=utf-8"

Json = dict[str, Any]


def traits() -> dict[Kind, Json]:
    """What the messages of a kind have in common; their AMQP properties as a schema."""
    common = {
        "content_type": {"const": "application/json"},
        "delivery_mode": {"const": PERSISTENT},
        "message_id": _TEXT,
        "type": _TEXT | {"description": "The message's name."},
        "correlation_id": _TEXT,
    }
    correlation = {
        "location": "$message.header#/correlation_id",
        "description": "The AMQP property.",
    }
    event = common | {
        "content_type": {"const": _EVENT_MEDIA},
        "message_id": _TEXT | {"description": "The event's id."},
        "app_id": {"const": "batchyard"},
        "timestamp": {"description": "The event's time, to the second."},
    }
    always = ["delivery_mode", "message_id", "type"]
    headers = {
        "type": "object",
        "description": "The event's attributes once more, so that bindings can match them.",
        "properties": {f"cloudEvents_{name}": _TEXT for name in EventShape.model_fields},
    }
    return {
        "received": {"contentType": "application/json", "correlationId": correlation},
        "reply": {
            "contentType": "application/json",
            "correlationId": correlation,
            _PROPERTIES: _object(common, [*always, "correlation_id"]),
        },
        "event": {
            "contentType": _EVENT_MEDIA,
            "correlationId": correlation,
            "headers": headers,
            _PROPERTIES: _object(event, [*always, "correlation_id", "timestamp"]),
        },
    }


def sent_by_tenants(name: str) -> Json:
    """The properties and headers of a message that we receive."""
    if name == live_messages.REQUEST:
        return _of_live_calls()
    received = RECEIVED[name]
    address = topology.reply_pattern(messages.TENANT.pattern, *received.queues)
    # Senders write the name alone, to which the broker adds what we receive.
    address = f"{address}|^{re.escape(topology.DIRECT_REPLY.rstrip('.'))}$"
    properties = {
        "content_type": _TEXT | {"pattern": CONTENT_TYPE},
        "content_encoding": {"enum": ["gzip", ""]},
        "delivery_mode": {"const": PERSISTENT},
        "message_id": _TEXT
        | {
            "pattern": f"^{messages.MESSAGE_ID.pattern}$",
            "description": "The idempotency key within the tenant: keep it until the confirm, "
            "and repeat the message with the same one.",
        },
        "type": {"const": name},
        "correlation_id": _TEXT
        | {
            "maxLength": MAX_CORRELATION_ID,
            "description": "Comes back in the reply and in every event. Default: the message id.",
        },
        "user_id": _TEXT
        | {
            "pattern": f"^{messages.TENANT.pattern}$",
            "description": "The broker's user, which the broker checks: this is the tenant.",
        },
        "reply_to": _TEXT
        | {
            "pattern": address if name == replays.REPLAY else f"^$|{address}",
            "description": "A queue of the tenant's own, or direct reply-to.",
        },
        # The broker would drop the message silently.
        "expiration": False,
    }
    headers = {
        "traceparent": {"description": "W3C's; comes back in the events."},
        "tracestate": {"description": "W3C's; comes back in the events."},
        "x-tenant": _TEXT | {"description": "If given, the tenant of `user_id`."},
        "x-schema": {
            "const": received.schema,
            "description": "If given, the `schema` of the body.",
        },
    }
    required = ["content_type", "delivery_mode", "message_id", "type", "user_id"]
    if name == replays.REPLAY:
        required.append("reply_to")
    return {
        "headers": {
            "type": "object",
            "description": f"At most {MAX_HEADER_BYTES} bytes; others are ignored.",
            "properties": headers,
        },
        _PROPERTIES: _object(properties, required),
    }


def _of_live_calls() -> Json:
    address = re.escape(topology.DIRECT_REPLY.rstrip("."))
    properties = {
        "content_type": _TEXT | {"pattern": CONTENT_TYPE},
        "content_encoding": {"enum": ["gzip", ""]},
        "delivery_mode": {
            "const": live_messages.TRANSIENT,
            "description": "So that the broker keeps nothing of the call.",
        },
        "message_id": _TEXT,
        "type": {"const": live_messages.REQUEST},
        "correlation_id": _TEXT
        | {
            "maxLength": MAX_CORRELATION_ID,
            "description": "Comes back in the answer. Default: the message id.",
        },
        "user_id": _TEXT
        | {
            "pattern": f"^{messages.TENANT.pattern}$",
            "description": "The broker's user, which the broker checks: this is the tenant.",
        },
        "reply_to": _TEXT
        | {
            # Senders write the name alone, to which the broker adds what we receive.
            "pattern": rf"^{address}$|^{address}\.[!-~]{{1,200}}$",
            "description": "Direct reply-to.",
        },
        "expiration": _TEXT
        | {
            "description": "Milliseconds; the broker checks them, and drops the message then.",
        },
    }
    return {_PROPERTIES: _object(properties, ["content_type", "type", "user_id", "reply_to"])}


def _object(properties: Json, required: list[str]) -> Json:
    return {"type": "object", "required": required, "properties": properties}
