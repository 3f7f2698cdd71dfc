"""Messages to open batches: the fields of `batch.requests/1` and `batch.close/1`. Does no I/O."""

from typing import Literal, NamedTuple

import msgspec
from pydantic import BaseModel, ConfigDict, Field

from shared.bus.messages import InlineRequest, Reason, RejectedError, checked, unpacked

REQUESTS = "batch.requests.v1"
CLOSE = "batch.close.v1"
#: Of one message.
MAX_REQUESTS = 1000
_BATCH_ID = "^batch_[0-9a-f]{32}$"


class _Shape(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class MoreRequests(_Shape):
    """The body of a message of type `batch.requests.v1`."""

    version: Literal["batch.requests/1"] = Field(alias="schema")
    batch_id: str = Field(pattern=_BATCH_ID)
    requests: list[InlineRequest] = Field(min_length=1, max_length=MAX_REQUESTS)


class Closing(_Shape):
    """The body of a message of type `batch.close.v1`."""

    version: Literal["batch.close/1"] = Field(alias="schema")
    batch_id: str = Field(pattern=_BATCH_ID)


class GivenRequests(NamedTuple):
    """Requests for an open batch: a JSON array, in which each has the bytes that were sent."""

    batch_id: str
    requests: bytes


class _Raw(msgspec.Struct):
    requests: msgspec.Raw


def decode_requests(body: bytes, *, content_encoding: str | None = None) -> GivenRequests:
    """The message's body. Raises RejectedError that names every wrong field."""
    body = unpacked(body, content_encoding, otherwise="Send the requests in several messages.")
    batch_id = checked(body, MoreRequests).batch_id
    try:
        # Written anew, the same request might differ from the one that came over HTTP.
        requests = msgspec.json.decode(body, type=_Raw).requests
    except (msgspec.DecodeError, RecursionError):
        reason = Reason("schema_invalid", "The body is not JSON.")
        raise RejectedError([reason], is_dead=True) from None
    return GivenRequests(batch_id, bytes(requests))


def decode_closing(body: bytes, *, content_encoding: str | None = None) -> Closing:
    """What `decode_requests` does, for the end of a batch."""
    return checked(unpacked(body, content_encoding), Closing)
