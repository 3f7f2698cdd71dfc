"""Dead letters: messages that could not be accepted, with the reason, to be read and replayed.

One queue holds two kinds. The dispatcher writes a table into a header of its dead letters.
The broker adds its own history to those that were delivered too often, or that expired.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple

from aio_pika.abc import AbstractIncomingMessage

from shared.bus.messages import Reason

#: The header with our table. It counts only if our own user published the message.
DEAD = "x-dead-letter"
#: The header in which our own user names the sender of a message that it publishes again.
REPLAY = "x-replay"
#: Limits of the table: a header frame holds 128 KiB, including the sender's own headers.
_MAX_REASONS = 20
_MAX_CHARACTERS = 500
_NAMES = (
    "message_id",
    "type",
    "content_type",
    "content_encoding",
    "correlation_id",
    "reply_to",
    "priority",
    "timestamp",
    "app_id",
)


#: Headers that the broker adds to a message on its way, and those that make it send copies
#: elsewhere.
_NOT_CARRIED = re.compile(r"x-(death|delivery-count|acquired-count|(first|last)-death-.*)|B?CC")


class DeadLetter(NamedTuple):
    """A message in the dead-letter queue.

    `properties`, `headers` and `body` are the sender's. `user` is who sent it, as the broker has
    checked; `where` is the place in our code that gave up, if it was a fault of ours. `deliveries`
    is None if the broker does not say.
    """

    id: str
    at: int | None
    by: Literal["dispatcher", "broker"]
    user: str | None
    exchange: str
    routing_key: str
    reasons: Sequence[Reason]
    reason_count: int
    where: str | None
    deliveries: int | None
    properties: Mapping[str, Any]
    headers: Mapping[str, Any]
    body: bytes
    #: Bytes of the body.
    size: int = 0


def own_headers(headers: Mapping[str, Any]) -> dict[str, Any]:
    """The sender's headers, without those that mean something to the broker."""
    return {
        name: _sendable(value)
        for name, value in headers.items()
        if not _NOT_CARRIED.fullmatch(name)
    }


def _sendable(value: Any) -> Any:
    """The value as pamqp can write it: it reads invalid UTF-8 as bytes and writes bytearrays."""
    match value:
        case bytes():
            return bytearray(value)
        case dict():
            return {name: _sendable(one) for name, one in value.items()}
        case list():
            return [_sendable(one) for one in value]
        case _:
            return value


def sent_properties(message: AbstractIncomingMessage) -> dict[str, Any]:
    """The properties that the sender has set, named as in AMQP, without user_id."""
    properties = {name: getattr(message, name) for name in _NAMES}
    # The client reads unset values as 1 and 0.
    properties["delivery_mode"] = int(message.delivery_mode or 0) or None
    properties["priority"] = message.priority or None
    if message.expiration is not None:
        properties["expiration"] = str(message.expiration)
    return {name: value for name, value in properties.items() if value is not None}


def letter_id(user: str | None, routing_key: str, message_id: str, body: bytes) -> str:
    """The id of a dead letter: always the same for the same message of the same sender."""
    sender = "\0".join((user or "", routing_key, message_id))
    return f"dl_{hashlib.sha256(sender.encode() + bytes(1) + body).hexdigest()[:16]}"


def dead_table(
    *,
    user: str | None,
    exchange: str,
    routing_key: str,
    properties: Mapping[str, Any],
    reasons: Sequence[Reason],
    reason_count: int,
    deliveries: int,
    at: int,
    where: str | None = None,
) -> dict[str, Any]:
    """The table of the header `DEAD`: what the broker would not keep, and the reasons."""
    return {
        "at": at,
        "user": user,
        "exchange": exchange,
        "routing_key": routing_key,
        "properties": dict(properties),
        "reasons": [
            [reason.code, reason.message[:_MAX_CHARACTERS], reason.param]
            for reason in reasons[:_MAX_REASONS]
        ],
        "reason_count": reason_count,
        "where": where,
        "deliveries": deliveries,
    }


def read(message: AbstractIncomingMessage, *, service_user: str) -> DeadLetter:
    """A message of the dead-letter queue as a dead letter."""
    headers: dict[str, Any] = dict(message.headers)
    table = headers.pop(DEAD, None)
    if message.user_id == service_user and isinstance(table, dict):
        return _given_up(table, headers, message.body)
    return _brokers(message, headers)


def replay_headers(letter: DeadLetter) -> dict[str, Any]:
    """The headers with which our own user publishes the letter on behalf of its sender."""
    return {
        **letter.headers,
        REPLAY: {"user": letter.user, "properties": dict(letter.properties)},
    }


def replayed(headers: Mapping[str, Any]) -> tuple[str | None, dict[str, Any], dict[str, Any]]:
    """The user, properties and headers of the message behind `replay_headers`."""
    rest = dict(headers)
    table = rest.pop(REPLAY)
    return table.get("user"), dict(table.get("properties") or {}), rest


def _given_up(table: dict[str, Any], headers: dict[str, Any], body: bytes) -> DeadLetter:
    properties = table["properties"]
    return DeadLetter(
        id=letter_id(table["user"], table["routing_key"], properties.get("message_id", ""), body),
        at=table["at"],
        by="dispatcher",
        user=table["user"],
        exchange=table["exchange"],
        routing_key=table["routing_key"],
        reasons=[Reason(*reason) for reason in table["reasons"]],
        reason_count=table["reason_count"],
        where=table["where"],
        deliveries=table["deliveries"],
        properties=properties,
        headers=own_headers(headers),
        body=body,
    )


def _brokers(message: AbstractIncomingMessage, headers: dict[str, Any]) -> DeadLetter:
    # The broker puts its newest entry first. The sender may have made up the others.
    history = headers.get("x-death")
    death = history[0] if isinstance(history, list) and history else {}
    death = death if isinstance(death, dict) else {}
    keys = death.get("routing-keys") or [""]
    exchange, routing_key = str(death.get("exchange", "")), str(keys[0])
    properties = sent_properties(message)
    why = str(death.get("reason", "unknown"))
    at = death.get("time")
    return DeadLetter(
        id=letter_id(message.user_id, routing_key, message.message_id or "", message.body),
        at=int(at.replace(tzinfo=at.tzinfo or UTC).timestamp())
        if isinstance(at, datetime)
        else None,
        by="broker",
        user=message.user_id,
        exchange=exchange,
        routing_key=routing_key,
        reasons=[Reason(why, _WORDS.get(why, f"The broker says: {why}."))],
        reason_count=1,
        where=None,
        deliveries=None,
        properties=properties,
        headers=own_headers(headers),
        body=message.body,
    )


_WORDS = {
    "delivery_limit": "The message was delivered too often and never settled: each time the "
    "dispatcher died, or could not reach Redis or S3.",
    "expired": "The message expired in the queue: its sender has set 'expiration'.",
    "rejected": "The dispatcher rejected the message and could not say why.",
    "maxlen": "The queue was full.",
}
