"""What an event says, as types, and which events there are. Does no I/O."""

from collections.abc import Mapping
from typing import Literal, NamedTuple

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from shared.lifecycle import Status
from shared.openai.shapes import Batch
from shared.pipeline.shapes import Pipeline


def _is_none(value: object) -> bool:
    return value is None


class StoredObject(BaseModel):
    """A result file in S3."""

    model_config = ConfigDict(frozen=True)

    bucket: str
    key: str
    etag: str
    size: int = Field(description="bytes")
    sha256: str
    url: str | None = Field(
        default=None,
        exclude_if=_is_none,
        description="reads it without a key until `url_expires_at`; if the operator turns it on",
    )
    url_expires_at: int | None = Field(
        default=None, exclude_if=_is_none, description="Unix seconds"
    )
    content: str | None = Field(
        default=None,
        exclude_if=_is_none,
        description="the file's text, if the submission asked for it and it is small",
    )


class BatchState(Batch):
    """The batch as HTTP shows it, without its list of errors, and with its result files."""

    errors: None = Field(default=None, exclude=True)
    first_error: str | None = Field(
        default=None, exclude_if=_is_none, description="why the batch failed, in a sentence"
    )
    tokens_per_second: float | None = Field(
        default=None, exclude_if=_is_none, description="since the batch began to run"
    )
    remaining_seconds: int | None = Field(
        default=None, exclude_if=_is_none, description="until `predicted.finish_at`"
    )
    output: StoredObject | None = Field(
        default=None, exclude_if=_is_none, description="readable before the event is sent"
    )
    error: StoredObject | None = Field(
        default=None, exclude_if=_is_none, description="readable before the event is sent"
    )


class CommittedSlice(BaseModel):
    """Rows of a batch that ran together and have their results."""

    model_config = ConfigDict(frozen=True)

    index: int
    first_row: int
    rows: int
    completed: int
    failed: int


class SliceState(BatchState):
    """The batch after one more of its slices."""

    slice: CommittedSlice


class EventShape(BaseModel):
    """A CloudEvent in structured mode. A repeat has the same `(source, id)`."""

    model_config = ConfigDict(frozen=True)

    specversion: Literal["1.0"]
    id: str = Field(description="the same each time that the event is sent")
    source: str = Field(
        description="/tenants/<tenant>/batches/<batch id>, or /tenants/<tenant>/pipelines/<its id>"
    )
    type: str
    subject: str = Field(description="the id of the batch or the pipeline")
    time: AwareDatetime
    datacontenttype: Literal["application/json"]
    sequence: str = Field(
        pattern="^[0-9]{8,}$", description="counts within the source; compares as text"
    )
    correlationid: str = Field(
        default="", description="the submission's; absent for a batch that came over HTTP"
    )
    traceparent: str = Field(
        default="",
        description="W3C's, of the batch's trace: the submission's own, or where the fleet is "
        "traced, a span below it; absent if there is none",
    )
    tracestate: str = Field(
        default="", description="W3C's, from the submission; absent if it had none"
    )


class EventType(NamedTuple):
    """When an event is sent, the shape of its data, and the status if there is only one."""

    when: str
    data: type[BaseModel] = BatchState
    status: Status | None = None


def _reached(status: Status, when: str) -> EventType:
    return EventType(when, status=status)


#: By the event's type; `tests/architecture/test_docs_asyncapi.py` compares it with the scripts.
EVENT_TYPES: Mapping[str, EventType] = {
    "batch.accepted": _reached(Status.VALIDATING, "The batch exists and is durable."),
    "batch.in_progress": _reached(Status.IN_PROGRESS, "Its input is valid, and it may run."),
    "batch.progress": EventType("Some of it is done; at most once a second for each batch."),
    "batch.paused": EventType("It was paused: no more of its slices start."),
    "batch.resumed": EventType("It was resumed."),
    "batch.updated": EventType("Its priority or metadata was changed."),
    "batch.finalizing": _reached(
        Status.FINALIZING, "All its rows have ended; its files are being written."
    ),
    "batch.cancelling": _reached(
        Status.CANCELLING, "Its cancellation was accepted; running rows are stopped."
    ),
    "batch.completed": _reached(Status.COMPLETED, "Final: each request has a result."),
    "batch.failed": _reached(Status.FAILED, "Final: its input is invalid, or it cannot run."),
    "batch.expired": _reached(Status.EXPIRED, "Final: its window ended first."),
    "batch.cancelled": _reached(Status.CANCELLED, "Final: with the results so far."),
    "slice.committed": EventType(
        "One slice has its results; only if the operator turns it on.", data=SliceState
    ),
}
#: The only events of a pipeline; its batches have their own.
PIPELINE_EVENT_TYPES: Mapping[str, EventType] = {
    f"pipeline.{status}": EventType(when, Pipeline, status)
    for status, when in (
        (Status.COMPLETED, "Each row has come through, or ended at a stage for a reason."),
        (Status.FAILED, "It cannot go on: `error` says why."),
        (Status.EXPIRED, "Its window ended first."),
        (Status.CANCELLED, "It was cancelled: with the rows so far."),
    )
}
