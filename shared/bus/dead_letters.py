"""Dead letters: messages that could not be taken, with the reason, to be read and replayed.

Two kinds lie in one queue. The dispatcher writes a table into a header of those that it gives up;
the broker adds its own history to those that were delivered too often, or expired.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple

from aio_pika.abc import AbstractIncomingMessage

from shared.bus.messages import Reason

#: The header with our table. It counts only in what our own user has published.
DEAD = "x-dead-letter"
#: The header with which our own user says whose message it publishes again.
REPLAY = "x-replay"
#: A header frame holds 128 KiB, with the sender's own headers.
_MOST_REASONS = 20
_MOST_CHARACTERS = 500
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


#: What the broker adds to a message on its way, for which its sender is not to blame, and the
#: headers by which it would send copies elsewhere.
_NOT_CARRIED = re.compile(r"x-(death|delivery-count|acquired-count|(first|last)-death-.*)|B?CC")


class DeadLetter(NamedTuple):
    """A message that lies in the dead-letter queue.

    `properties`, `headers` and `body` are the sender's. `user` is who sent it, as the broker has
    checked; `where` is the place in our code that gave up, if it was a fault of ours. `deliveries`
    is None where the broker does not tell.
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
    """The headers that the sender gave and that ask nothing of the broker."""
    return {
        name: _sendable(value)
        for name, value in headers.items()
        if not _NOT_CARRIED.fullmatch(name)
    }


def _sendable(value: Any) -> Any:
    """Pamqp reads a text that is not UTF-8 as bytes, and writes no bytes but these."""
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
    """The properties that the sender has set, named as in AMQP; user_id is not among them."""
    told = {name: getattr(message, name) for name in _NAMES}
    # The client reads what is not set as 1 and as 0.
    told["delivery_mode"] = int(message.delivery_mode or 0) or None
    told["priority"] = message.priority or None
    if message.expiration is not None:
        told["expiration"] = str(message.expiration)
    return {name: value for name, value in told.items() if value is not None}


def letter_id(user: str | None, routing_key: str, message_id: str, body: bytes) -> str:
    """The same for the same message of the same sender, however often it dies or is looked at."""
    told = "\0".join((user or "", routing_key, message_id))
    return f"dl_{hashlib.sha256(told.encode() + bytes(1) + body).hexdigest()[:16]}"


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
    """What stands under `DEAD`: all that the broker would not keep, and why the message died."""
    return {
        "at": at,
        "user": user,
        "exchange": exchange,
        "routing_key": routing_key,
        "properties": dict(properties),
        "reasons": [
            [reason.code, reason.message[:_MOST_CHARACTERS], reason.param]
            for reason in reasons[:_MOST_REASONS]
        ],
        "reason_count": reason_count,
        "where": where,
        "deliveries": deliveries,
    }


def read(message: AbstractIncomingMessage, *, service_user: str) -> DeadLetter:
    """The dead letter that a message of the dead-letter queue is."""
    headers: dict[str, Any] = dict(message.headers)
    table = headers.pop(DEAD, None)
    if message.user_id == service_user and isinstance(table, dict):
        return _given_up(table, headers, message.body)
    return _brokers(message, headers)


def replay_headers(letter: DeadLetter) -> dict[str, Any]:
    """The headers under which our own user may publish the letter as what it was."""
    return {
        **letter.headers,
        REPLAY: {"user": letter.user, "properties": dict(letter.properties)},
    }


def replayed(headers: Mapping[str, Any]) -> tuple[str | None, dict[str, Any], dict[str, Any]]:
    """User, properties and headers of the message that `replay_headers` was made of."""
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
    # The broker puts its newest entry first; what follows the sender may have made up.
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
