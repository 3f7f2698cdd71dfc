"""The document's channels and operations: which messages pass where, and who sends them."""

from collections.abc import Sequence
from typing import Any

from shared.bus import live_messages, messages, open_messages, replays, topology
from shared.bus.event_shapes import EVENT_TYPES, PIPELINE_EVENT_TYPES
from shared.bus.received import PERSISTENT

BINDING_VERSION = "0.3.0"

Json = dict[str, Any]


def channels() -> Json:
    def every(names: Sequence[str]) -> Json:
        return {name: {"$ref": f"#/components/messages/{name}"} for name in names}

    tenant = {"description": "The broker's user; lower-case letters, digits, '-' and '_'."}
    return {
        "submit": {
            "address": topology.submit_key("{tenant}"),
            "description": "Where a tenant publishes batches. The broker closes the channel (403) "
            "of a tenant who publishes under a key that is not its own.",
            "messages": every([messages.SUBMIT]),
            "parameters": {"tenant": tenant},
            "bindings": {"amqp": _exchange(topology.SUBMIT_EXCHANGE)},
        },
        "requests": {
            "address": topology.requests_key("{tenant}"),
            "description": "Where a tenant adds requests to its open batches.",
            "messages": every([open_messages.REQUESTS]),
            "parameters": {"tenant": tenant},
            "bindings": {"amqp": _exchange(topology.SUBMIT_EXCHANGE)},
        },
        "close": {
            "address": topology.close_key("{tenant}"),
            "description": "Where a tenant closes its open batches.",
            "messages": every([open_messages.CLOSE]),
            "parameters": {"tenant": tenant},
            "bindings": {"amqp": _exchange(topology.SUBMIT_EXCHANGE)},
        },
        "cancel": {
            "address": topology.cancel_key("{tenant}"),
            "description": "Where a tenant cancels batches.",
            "messages": every([messages.CANCEL]),
            "parameters": {"tenant": tenant},
            "bindings": {"amqp": _exchange(topology.SUBMIT_EXCHANGE)},
        },
        "replay": {
            "address": topology.replay_key("{tenant}"),
            "description": "Where a tenant asks for events again.",
            "messages": every([replays.REPLAY]),
            "parameters": {"tenant": tenant},
            "bindings": {"amqp": _exchange(topology.SUBMIT_EXCHANGE)},
        },
        "live": {
            "address": topology.live_key("{tenant}"),
            "description": "Where a tenant makes live calls. A call that no gateway takes within "
            f"{topology.LIVE_QUEUE_MILLISECONDS // 1000} seconds is dropped.",
            "messages": every([live_messages.REQUEST]),
            "parameters": {"tenant": tenant},
            "bindings": {"amqp": _exchange(topology.LIVE_EXCHANGE)},
        },
        "liveReply": {
            "address": None,
            "description": "RabbitMQ's direct reply-to: no queue keeps the answer of a live call.",
            "messages": every([live_messages.REPLY]),
            "bindings": {
                "amqp": {
                    "is": "queue",
                    "queue": {"durable": False, "exclusive": True, "autoDelete": True},
                    "bindingVersion": BINDING_VERSION,
                }
            },
        },
        "reply": {
            "address": None,
            "description": "The queue that a message's `reply_to` names: the tenant's own "
            "`reply.<tenant>.<name>`, or RabbitMQ's direct reply-to; for a replay request also the "
            "tenant's `sub.<tenant>.<name>`.",
            "messages": every([messages.REPLY, replays.REPLAYED]),
            "bindings": {
                "amqp": {
                    "is": "queue",
                    "queue": {"durable": True, "exclusive": False, "autoDelete": False},
                    "bindingVersion": BINDING_VERSION,
                }
            },
        },
        "events": {
            "address": topology.event_key("{type}", "{tenant}", "{batchId}"),
            "description": "A subscriber binds a queue of its own, `sub.<tenant>.<name>`, to one "
            "batch, to one type (`batch.completed.<tenant>.*`) or to all (`batch.*.<tenant>.*`).",
            "messages": every(list(EVENT_TYPES)),
            "parameters": {
                "type": {"enum": list(EVENT_TYPES), "description": "The event's type."},
                "tenant": tenant,
                "batchId": {"description": "The batch's id; it has no dots."},
            },
            "bindings": {"amqp": _exchange(topology.EVENTS_EXCHANGE)},
        },
        "pipelineEvents": {
            "address": topology.event_key("{type}", "{tenant}", "{pipelineId}"),
            "description": "The ends of pipelines, on the same exchange: "
            "`pipeline.*.<tenant>.*` for all of them.",
            "messages": every(list(PIPELINE_EVENT_TYPES)),
            "parameters": {
                "type": {"enum": list(PIPELINE_EVENT_TYPES), "description": "The event's type."},
                "tenant": tenant,
                "pipelineId": {"description": "The pipeline's id; it has no dots."},
            },
            "bindings": {"amqp": _exchange(topology.EVENTS_EXCHANGE)},
        },
    }


def operations() -> Json:
    def of(channel: str, names: Sequence[str]) -> list[Json]:
        return [{"$ref": f"#/channels/{channel}/messages/{name}"} for name in names]

    def received(channel: str, name: str, summary: str, *, reply: str = messages.REPLY) -> Json:
        is_live = channel == "live"
        mode = live_messages.TRANSIENT if is_live else PERSISTENT
        replies = "liveReply" if is_live else "reply"
        return {
            "action": "receive",
            "channel": {"$ref": f"#/channels/{channel}"},
            "summary": summary,
            "messages": of(channel, [name]),
            "bindings": {"amqp": {"deliveryMode": mode, "mandatory": True, "ack": True}},
            "reply": {
                "address": {
                    "location": "$message.header#/reply_to",
                    "description": "The AMQP property; without one there is no reply.",
                },
                "channel": {"$ref": f"#/channels/{replies}"},
                "messages": of(replies, [reply]),
            },
        }

    return {
        "receiveBatch": received(
            "submit",
            messages.SUBMIT,
            "Accept a batch. Publish with confirms and `mandatory`, and repeat an unconfirmed "
            "message with the same message id.",
        ),
        "receiveRequests": received(
            "requests",
            open_messages.REQUESTS,
            "Add requests to an open batch, all of them or none; repeating it adds nothing.",
        ),
        "receiveClosing": received(
            "close",
            open_messages.CLOSE,
            "Let an open batch take no more requests; repeating it is harmless.",
        ),
        "receiveCancellation": received(
            "cancel", messages.CANCEL, "Cancel a batch, as over HTTP; repeating it is harmless."
        ),
        "receiveReplayRequest": received(
            "replay",
            replays.REPLAY,
            "Send events again; a repeated event has the same id and bytes.",
            reply=replays.REPLAYED,
        ),
        "receiveLiveCall": received(
            "live",
            live_messages.REQUEST,
            "Answer a call at once, or refuse it, as over HTTP. What cannot be answered by its "
            "deadline does not run.",
            reply=live_messages.REPLY,
        ),
        "sendEvent": {
            "action": "send",
            "channel": {"$ref": "#/channels/events"},
            "summary": "Announce each change of a batch, at least once, in the order of `sequence` "
            "unless a process died.",
            "messages": of("events", list(EVENT_TYPES)),
            "bindings": {"amqp": {"deliveryMode": 2}},
        },
        "sendPipelineEvent": {
            "action": "send",
            "channel": {"$ref": "#/channels/pipelineEvents"},
            "summary": "Announce the end of a pipeline, at least once, with the same id each time.",
            "messages": of("pipelineEvents", list(PIPELINE_EVENT_TYPES)),
            "bindings": {"amqp": {"deliveryMode": 2}},
        },
    }


def _exchange(name: str) -> Json:
    return {
        "is": "routingKey",
        "exchange": {
            "name": name,
            "type": topology.EXCHANGE_TYPES[name],
            "durable": True,
            "autoDelete": False,
            "vhost": topology.VIRTUAL_HOST,
        },
        "bindingVersion": BINDING_VERSION,
    }
