"""A live call by message, and its answer. Does no I/O.

No queue of ours or of a tenant keeps either of them: the message is transient, and the answer goes
to direct reply-to.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from shared.bus.messages import (
    TENANT,
    Reason,
    RejectedError,
    RequestBody,
    checked,
    unpacked,
)
from shared.bus.received import MAX_CORRELATION_ID, is_json
from shared.bus.topology import DIRECT_REPLY, live_key
from shared.bus.unreadable import UNREADABLE
from shared.integers import Integer

REQUEST = "live.request.v1"
REPLY = "live.reply.v1"
#: The broker writes others to its disk.
TRANSIENT = 1
#: How far ahead a deadline may be, which finds out those in other units.
MAX_AHEAD_SECONDS = 600
_DIRECT = re.compile(rf"{re.escape(DIRECT_REPLY)}[!-~]{{1,200}}")
_YEAR_9999 = 253_402_300_799_999


class LiveRequest(BaseModel):
    """The body of a message of type `live.request.v1`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: Literal["live.request/1"] = Field(alias="schema")
    endpoint: str
    #: Unix milliseconds.
    deadline_ms: Integer = Field(ge=0, le=_YEAR_9999)
    #: As over HTTP, without `stream`.
    body: RequestBody


class LiveReply(BaseModel):
    """What the same call over HTTP would have got."""

    model_config = ConfigDict(frozen=True, json_schema_serialization_defaults_required=True)

    status_code: int
    #: Also in the `id` of the answer.
    request_id: str
    #: Limits, and when to try again.
    headers: dict[str, str]
    #: The model's answer, or OpenAI's envelope of an error.
    body: dict[str, Any]


class Asked(NamedTuple):
    """A message without its body. `user` is who published it, as the broker has checked.

    Properties are named as in AMQP, and absent if not set.
    """

    user: str | None
    routing_key: str
    properties: Mapping[str, Any]
    headers: Mapping[str, Any]

    @property
    def tenant(self) -> str | None:
        """The tenant whose call it is."""
        return self.user if self.user and TENANT.fullmatch(self.user) else None

    @property
    def reply_to(self) -> str | None:
        """Where the answer goes; None if it cannot be answered."""
        address = self.text("reply_to")
        return address if self.tenant and _DIRECT.fullmatch(address) else None

    @property
    def correlation_id(self) -> str:
        """What the answer carries."""
        return (self.text("correlation_id") or self.text("message_id"))[:MAX_CORRELATION_ID]

    def text(self, name: str) -> str:
        """A property as a string, empty if it is not set."""
        return str(self.properties.get(name) or "")


def decode_live_request(asked: Asked, body: bytes) -> LiveRequest:
    """The call. Raises RejectedError with every problem of the properties and the body."""
    reasons = list(malformed(asked))
    try:
        text = unpacked(body, asked.text("content_encoding"), otherwise="Call over HTTP.")
        request = checked(text, LiveRequest)
    except RejectedError as error:
        raise RejectedError([*reasons, *error.reasons]) from error
    if reasons:
        raise RejectedError(reasons)
    return request


def malformed(asked: Asked) -> Iterator[Reason]:
    """Every rule that the properties break, in the order of docs/bus-live.md."""
    for name, is_good, rule in _RULES:
        if not is_good(asked):
            yield Reason("schema_invalid", f"{name}: {rule}", name)


_RULES: tuple[tuple[str, Callable[[Asked], bool], str], ...] = (
    (
        "properties",
        lambda asked: UNREADABLE not in asked.headers,
        "a string is not UTF-8, or a number is out of range.",
    ),
    ("user_id", lambda asked: asked.tenant is not None, "required: the name of your login."),
    (
        "routing_key",
        lambda asked: asked.routing_key == live_key(asked.tenant or ""),
        "it is 'live.v1.' and the name of your login.",
    ),
    ("type", lambda asked: asked.text("type") == REQUEST, f"'{REQUEST}' is required."),
    (
        "content_type",
        lambda asked: is_json(asked.text("content_type")),
        "'application/json' is required.",
    ),
    (
        "delivery_mode",
        lambda asked: asked.properties.get("delivery_mode", TRANSIENT) == TRANSIENT,
        "1 (transient) is required, so that the broker keeps nothing of the call.",
    ),
    (
        "correlation_id",
        lambda asked: len(asked.text("correlation_id")) <= MAX_CORRELATION_ID,
        f"at most {MAX_CORRELATION_ID} characters.",
    ),
    (
        "reply_to",
        lambda asked: asked.reply_to is not None,
        f"required: direct reply-to, '{DIRECT_REPLY.rstrip('.')}'.",
    ),
)
