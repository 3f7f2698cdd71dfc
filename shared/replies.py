"""What whoever submits is answered, as types. Does no I/O."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, RootModel

from shared.lifecycle import Status

#: The AMQP type of a reply.
REPLY = "batch.reply.v1"


class _Shape(BaseModel):
    model_config = ConfigDict(frozen=True, json_schema_serialization_defaults_required=True)


class AcceptedBatch(_Shape):
    """The batch that a submission made, or met."""

    id: str
    object: Literal["batch"] = "batch"
    status: Status
    created_at: int
    expires_at: int


class AcceptedReply(_Shape):
    """The batch exists, on disk in Redis and in S3."""

    status: Literal["accepted"] = "accepted"
    #: Whether the same message id had made it before.
    duplicate: bool
    batch: AcceptedBatch


class Reason(_Shape):
    """Why a message was refused; `param` is the path of the field."""

    code: str
    message: str
    param: str | None
    type: Literal["invalid_request_error"] = "invalid_request_error"


class RejectedReply(_Shape):
    """Nothing was made, and the same message would be refused again."""

    status: Literal["rejected"] = "rejected"
    error: Reason


class Reply(RootModel[AcceptedReply | RejectedReply]):
    """The answer to a submission that has a `reply_to`."""
