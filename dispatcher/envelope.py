"""The AMQP properties of a batch message, checked as docs/bus.md says."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

from pamqp import encode

from shared.bus import messages, replays
from shared.bus.dead_letters import own_headers
from shared.bus.messages import MESSAGE_ID, TENANT, Reason, RejectedError
from shared.bus.received import (
    MAX_CORRELATION_ID,
    MAX_HEADER_BYTES,
    PERSISTENT,
    RECEIVED,
    Received,
    is_json,
)
from shared.bus.topology import may_receive
from shared.bus.unreadable import UNREADABLE
from shared.tracing.trace_context import usable

T = TypeVar("T")


class Envelope(NamedTuple):
    """A message without its body. Properties are named as in AMQP, and absent if not set.

    `user` is who published it, as the broker has checked; None if the message does not say.
    """

    user: str | None
    exchange: str
    routing_key: str
    properties: Mapping[str, Any]
    headers: Mapping[str, Any]

    def text(self, name: str) -> str:
        """A property as a string, empty if it is not set."""
        return str(self.properties.get(name) or "")

    @property
    def type(self) -> str:
        return self.text("type")

    @property
    def message_id(self) -> str:
        return self.text("message_id")

    @property
    def correlation_id(self) -> str:
        return self.text("correlation_id") or self.message_id

    @property
    def tenant(self) -> str | None:
        """The tenant whose message it is, which only the broker can vouch for."""
        return self.user if self.user and TENANT.fullmatch(self.user) else None

    @property
    def reply_to(self) -> str | None:
        """The queue for the reply; None if there is none, or if it is not the sender's."""
        address = self.text("reply_to")
        is_own = self.tenant and may_receive(self.tenant, address, *_kind(self).queues)
        return address if is_own else None

    @property
    def can_be_answered(self) -> bool:
        return self.reply_to is not None

    @property
    def has_valid_id(self) -> bool:
        return MESSAGE_ID.fullmatch(self.message_id) is not None

    @property
    def trace(self) -> tuple[str, str]:
        """`traceparent` and `tracestate`, empty if W3C's rules say to ignore them."""
        return usable(self.headers.get("traceparent"), self.headers.get("tracestate"))


def header_bytes(headers: Mapping[str, Any]) -> int:
    """The encoded size of a message's own headers; above the limit if they cannot be encoded.

    Pamqp reads numbers of 64 bits and writes 32 bits: a large one is an OverflowError.
    """
    try:
        return len(encode.field_table(own_headers(headers)))
    except (TypeError, ValueError, OverflowError):
        return MAX_HEADER_BYTES + 1


def unauthorised(envelope: Envelope) -> Iterator[Reason]:
    """Reasons why the message does not prove to be from the tenant."""
    tenant = envelope.tenant
    if tenant is None:
        yield Reason(
            "tenant_mismatch",
            "user_id: required. Set it to the name of your login, which is the tenant.",
            "user_id",
        )
        return
    # An unknown type is a problem of its own, whichever of the tenant's keys it came under.
    kinds = [RECEIVED[envelope.type]] if envelope.type in RECEIVED else RECEIVED.values()
    keys = sorted({kind.key(tenant) for kind in kinds})
    if envelope.routing_key not in keys:
        expected = "' or '".join(keys)
        yield Reason(
            "bad_routing_key",
            f"routing_key: '{envelope.routing_key[:255]}' is not '{expected}'.",
            "routing_key",
        )
    claimed = envelope.headers.get("x-tenant")
    if claimed is not None and claimed != tenant:
        yield Reason(
            "tenant_mismatch",
            f"headers.x-tenant: '{str(claimed)[:63]}' is not the tenant of user_id, '{tenant}'.",
            "headers.x-tenant",
        )


def decoded(envelope: Envelope, body: bytes, decode: Callable[..., T]) -> T:
    """The parsed body. Raises RejectedError with every problem of the body and the envelope."""
    reasons = [*unauthorised(envelope), *malformed(envelope)]
    try:
        value = decode(body, content_encoding=envelope.text("content_encoding"))
    except RejectedError as error:
        raise RejectedError([*reasons, *error.reasons], is_dead=error.is_dead) from error
    if reasons:
        raise RejectedError(reasons)
    return value


def _kind(envelope: Envelope) -> Received:
    return RECEIVED.get(envelope.type, RECEIVED[messages.SUBMIT])


def malformed(envelope: Envelope) -> Iterator[Reason]:
    """Every rule that the properties and headers break, in the order of docs/bus.md."""
    yield from _malformed_names(envelope)
    yield from _malformed_delivery(envelope)
    yield from _malformed_headers(envelope)


def _malformed_names(envelope: Envelope) -> Iterator[Reason]:
    if UNREADABLE in envelope.headers:
        yield _invalid("properties", "a string is not UTF-8, or a number is out of range.")
    if not MESSAGE_ID.fullmatch(envelope.message_id):
        yield _invalid("message_id", "required, 1 to 128 of A-Z a-z 0-9 _ . : -")
    if envelope.type not in RECEIVED:
        yield _invalid(
            "type", f"'{envelope.type[:80]}' is not one of {', '.join(sorted(RECEIVED))}."
        )
    if not is_json(envelope.text("content_type")):
        got = envelope.text("content_type")[:80]
        yield Reason(
            "unsupported_media",
            f"content_type: '{got}' is not 'application/json'.",
            "content_type",
        )


def _malformed_delivery(envelope: Envelope) -> Iterator[Reason]:
    if envelope.properties.get("delivery_mode") != PERSISTENT:
        yield _invalid(
            "delivery_mode",
            "2 (persistent) is required, so that the message survives a restart of the broker.",
        )
    if len(envelope.text("correlation_id")) > MAX_CORRELATION_ID:
        yield _invalid("correlation_id", f"at most {MAX_CORRELATION_ID} characters.")
    address = envelope.text("reply_to")
    # Without a tenant, the queue has no owner.
    if address and envelope.tenant and envelope.reply_to is None:
        own = "' or '".join(f"{kind}.{envelope.tenant}.*" for kind in _kind(envelope).queues)
        yield Reason(
            "bad_reply_to",
            f"reply_to: '{address[:255]}' is neither a queue '{own}' nor direct reply-to.",
            "reply_to",
        )
    if not address and envelope.type == replays.REPLAY:
        yield _invalid("reply_to", "required: the events go there.")
    if "expiration" in envelope.properties:
        yield _invalid("expiration", "not allowed. Use 'not_after' in the body.")


def _malformed_headers(envelope: Envelope) -> Iterator[Reason]:
    schema = envelope.headers.get("x-schema")
    kind = RECEIVED.get(envelope.type)
    if schema is not None and kind is not None and schema != kind.schema:
        yield _invalid("headers.x-schema", f"'{str(schema)[:80]}' is not '{kind.schema}'.")
    if (size := header_bytes(envelope.headers)) > MAX_HEADER_BYTES:
        yield Reason(
            "too_large",
            f"headers: {size} bytes; at most {MAX_HEADER_BYTES} are allowed.",
            "headers",
        )


def _invalid(name: str, why: str) -> Reason:
    return Reason("schema_invalid", f"{name}: {why}", name)
