"""A delivered message: its tenant, its delivery count, and copies of it."""

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from aio_pika.abc import AbstractIncomingMessage

from dispatcher.envelope import Envelope, header_bytes
from shared.bus.dead_letters import REPLAY, own_headers, replayed, sent_properties
from shared.bus.received import MAX_HEADER_BYTES

#: A message that was delivered more often may be what kills the dispatcher.
_TRUSTED_DELIVERIES = 3


class Delivery:
    """One delivery of a message. What our own login sends for others is theirs."""

    def __init__(self, message: AbstractIncomingMessage, *, service_user: str) -> None:
        self.message = message
        self._service_user = service_user

    @property
    def body(self) -> bytes:
        return self.message.body

    @cached_property
    def envelope(self) -> Envelope:
        message = self.message
        headers: dict[str, Any] = dict(message.headers)
        user, properties = message.user_id, sent_properties(message)
        # From any other user, this header says nothing.
        if user == self._service_user and isinstance(headers.get(REPLAY), dict):
            user, properties, headers = replayed(headers)
        return Envelope(
            user, message.exchange or "", message.routing_key or "", properties, headers
        )

    @property
    def count(self) -> int:
        """How often the message has been delivered, including this time."""
        if not self.message.redelivered:
            return 1
        count = self.message.headers.get("x-delivery-count")
        return count + 1 if isinstance(count, int) else 2

    @property
    def is_suspect(self) -> bool:
        """Whether the message was delivered so often that it may be what kills the dispatcher."""
        return self.count > _TRUSTED_DELIVERIES

    @property
    def has_small_headers(self) -> bool:
        """Whether the sender's headers may be published again."""
        return header_bytes(self.envelope.headers) <= MAX_HEADER_BYTES

    @property
    def own_properties(self) -> dict[str, str]:
        """The properties under which our own login publishes the message again."""
        return {
            "message_id": self.envelope.message_id,
            "type": self.envelope.type,
            "content_type": self.envelope.text("content_type"),
        }

    @property
    def copy_headers(self) -> dict[str, Any]:
        """The headers of a copy that our own login publishes, as if its sender did."""
        envelope = self.envelope
        sender = {"user": envelope.user, "properties": dict(envelope.properties)}
        return {**own_headers(envelope.headers), REPLAY: sender}

    @property
    def log_fields(self) -> Mapping[str, str | None]:
        """The fields of the message that log lines show."""
        message = self.message
        return {"message_id": message.message_id, "type": message.type, "user": message.user_id}
