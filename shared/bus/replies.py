"""The replies to senders of messages, as types. Does no I/O."""

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, RootModel

from shared.bus.messages import RejectedError
from shared.lifecycle import Status
from shared.openai.shapes import BatchWarning


class _Shape(BaseModel):
    model_config = ConfigDict(frozen=True, json_schema_serialization_defaults_required=True)


class AcceptedBatch(_Shape):
    """The batch that a message made, met, extended, closed or cancelled."""

    id: str
    object: Literal["batch"] = "batch"
    status: Status
    created_at: int
    expires_at: int
    #: Only present if there is one. A batch with inline requests has them at once; of another batch
    #: they come with its event `batch.in_progress`.
    warnings: list[BatchWarning] = Field(default=[], exclude_if=lambda warnings: not warnings)


class AddedRequests(_Shape):
    """What a message has added to an open batch."""

    #: Requests that are new.
    added: int
    #: Requests that the batch had already, with the same bytes.
    repeated: int
    #: Requests that the batch has now.
    total: int


class AcceptedReply(_Shape):
    """What was asked for is done, on disk."""

    status: Literal["accepted"] = "accepted"
    #: Whether that was so before the message came.
    duplicate: bool
    batch: AcceptedBatch
    #: Only present if the message brought requests for an open batch.
    requests: AddedRequests | None = Field(default=None, exclude_if=lambda added: added is None)


class ReplyError(_Shape):
    """One thing that is wrong with the message; `param` is the field, property or header."""

    code: str
    message: str
    param: str | None
    type: Literal["invalid_request_error"] = "invalid_request_error"


class RejectedReply(_Shape):
    """Nothing was done.

    After `quota_exceeded`, `input_unavailable` and `replay_in_progress` the same message may be
    sent again later. After any other code it would be refused again.
    """

    status: Literal["rejected"] = "rejected"
    #: The first of `errors`, where OpenAI's clients look for it.
    error: ReplyError
    errors: list[ReplyError]
    #: Of all, also where not all are listed.
    error_count: int

    @classmethod
    def of(cls, error: RejectedError) -> Self:
        errors = [ReplyError(**reason._asdict()) for reason in error.reasons]
        return cls(error=errors[0], errors=errors, error_count=error.count)


class Reply(RootModel[AcceptedReply | RejectedReply]):
    """The answer to a message that has a `reply_to`."""
