"""How events are asked for again: the message `batch.replay/1`, to the field. Does no I/O."""

import json
from typing import Literal, NamedTuple

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, RootModel, ValidationError

from shared.errors import InvalidInputError
from shared.messages import path
from shared.replies import ReplyError

REPLAY = "batch.replay.v1"
#: The answer's last message: what was sent before it, or why nothing was.
REPLAYED = "batch.replayed.v1"
_MAX_BODY_BYTES = 4096


class _Shape(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class OfBatch(_Shape):
    """All that is kept of one batch's events."""

    version: Literal["batch.replay/1"] = Field(alias="schema")
    batch_id: str = Field(pattern="^batch_[0-9a-f]{32}$")


class Since(_Shape):
    """The events of all batches that changed after a time."""

    version: Literal["batch.replay/1"] = Field(alias="schema")
    since: AwareDatetime


class ReplayRequest(RootModel[OfBatch | Since]):
    """Events asked for again: those of one batch, or of all that changed since a time."""


class Replayed(NamedTuple):
    """What was sent; `next_since` goes on after it, and is None when there is no more."""

    batches: int
    events: int
    next_since: str | None


class ReplayedReply(BaseModel):
    """What was sent before it; `next_since` goes on, and is null when there is no more."""

    model_config = ConfigDict(frozen=True)

    status: Literal["replayed"] = "replayed"
    batches: int
    events: int
    next_since: str | None


class UnreplayedReply(BaseModel):
    """Nothing was sent, and why."""

    model_config = ConfigDict(frozen=True)

    status: Literal["rejected"] = "rejected"
    error: ReplyError


class ReplayReply(RootModel[ReplayedReply | UnreplayedReply]):
    """The end of an answer to a replay request."""


def decode_replay(body: bytes) -> OfBatch | Since:
    """The message's body as a value. Raises InvalidInputError that names the field."""
    if len(body) > _MAX_BODY_BYTES:
        raise InvalidInputError(
            f"The message has {len(body)} bytes; at most {_MAX_BODY_BYTES} are allowed.",
            code="too_large",
        )
    try:
        told = json.loads(body)
    except ValueError:
        raise InvalidInputError("The body is not JSON.", code="schema_invalid") from None
    names = told.keys() & {"batch_id", "since"} if isinstance(told, dict) else set()
    if len(names) != 1:
        raise InvalidInputError(
            "One of 'batch_id' and 'since' is required, and not both.", code="schema_invalid"
        )
    shape = OfBatch if "batch_id" in names else Since
    try:
        return shape.model_validate_json(body, strict=True)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
    param = path(first["loc"])
    raise InvalidInputError(f"{param}: {first['msg']}", param=param, code="schema_invalid")
