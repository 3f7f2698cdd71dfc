"""Requests for a replay: the fields of `batch.replay/1` and its answer. Does no I/O."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, RootModel
from pydantic_core import from_json

from shared.bus.messages import Moment, Reason, RejectedError, checked, unpacked
from shared.bus.replies import RejectedReply

REPLAY = "batch.replay.v1"
#: The last message of an answer: what was sent before it, or why nothing was.
REPLAYED = "batch.replayed.v1"
_MAX_BODY_BYTES = 4096


class _Request(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    version: Literal["batch.replay/1"] = Field(alias="schema")


class OfBatch(_Request):
    """A request for all events of one batch that are kept."""

    batch_id: str = Field(pattern="^batch_[0-9a-f]{32}$")


class Since(_Request):
    """A request for the events of all batches that changed after a time."""

    since: Moment


class _Both(OfBatch, Since):
    """Both at once, which is not allowed. It exists to check all fields."""


class ReplayRequest(RootModel[OfBatch | Since]):
    """Events asked for again: those of one batch, or of all that changed since a time."""


class ReplayedReply(BaseModel):
    """What was sent. Ask again with `next_since` for the rest; it is null if there is no more."""

    model_config = ConfigDict(frozen=True)

    status: Literal["replayed"] = "replayed"
    batches: int
    events: int
    next_since: str | None


class ReplayReply(RootModel[ReplayedReply | RejectedReply]):
    """The end of an answer to a replay request."""


def decode_replay(body: bytes, *, content_encoding: str | None = None) -> OfBatch | Since:
    """The message's body as a value. Raises RejectedError that names every wrong field."""
    body = unpacked(body, content_encoding)
    if len(body) > _MAX_BODY_BYTES:
        text = f"The message has {len(body)} bytes; at most {_MAX_BODY_BYTES} are allowed."
        raise RejectedError([Reason("too_large", text)], is_dead=True)
    try:
        value = from_json(body)
    except ValueError:
        return checked(body, OfBatch)
    names = value.keys() & {"batch_id", "since"} if isinstance(value, dict) else set()
    if names == {"batch_id"}:
        return checked(body, OfBatch)
    if names == {"since"}:
        return checked(body, Since)
    text = "One of 'batch_id' and 'since' is required, and not both."
    reasons = [Reason("schema_invalid", text)]
    if isinstance(value, dict):
        try:
            checked(body, _Both if names else _Request)
        except RejectedError as error:
            reasons += error.reasons
    raise RejectedError(reasons)
