"""The HTTP shapes of OpenAI's Files, Batches and Models API, as clients expect them. Pure.

Every key is sent every time, null when unset.
"""

from typing import Annotated, Generic, Literal, Protocol, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from shared.lifecycle import Status

T = TypeVar("T")


class _Listed(Protocol):
    @property
    def id(self) -> str: ...


L = TypeVar("L", bound=_Listed)


class _Shape(BaseModel):
    model_config = ConfigDict(frozen=True, json_schema_serialization_defaults_required=True)


class File(_Shape):
    """An uploaded or produced object."""

    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    expires_at: int | None = None
    filename: str
    purpose: str
    status: Literal["uploaded", "processed", "error"] = "processed"
    status_details: str | None = None


class Upload(_Shape):
    """A file that is sent in parts; `bytes` is the size that all parts must have together."""

    id: str
    object: Literal["upload"] = "upload"
    bytes: int
    created_at: int
    expires_at: int
    filename: str
    purpose: str
    status: Literal["pending", "completed", "cancelled", "expired"] = "pending"
    file: File | None = None


class UploadPart(_Shape):
    """Some of an upload's bytes. The completion says in which order the parts belong."""

    id: str
    object: Literal["upload.part"] = "upload.part"
    created_at: int
    upload_id: str


class Deleted(_Shape):
    """The answer to a deletion."""

    id: str
    object: Literal["file"] = "file"
    deleted: bool = True


class RequestCounts(_Shape):
    """Rows of a batch. `total` is 0 until the input has been read."""

    total: int = 0
    completed: int = 0
    failed: int = 0


class InputTokensDetails(_Shape):
    cached_tokens: int = 0


class OutputTokensDetails(_Shape):
    reasoning_tokens: int = 0


class Usage(_Shape):
    """The sum of tokens over all rows that have a result."""

    input_tokens: int = 0
    input_tokens_details: InputTokensDetails = InputTokensDetails()
    output_tokens: int = 0
    output_tokens_details: OutputTokensDetails = OutputTokensDetails()
    total_tokens: int = 0


class Amount(_Shape):
    """Money, as OpenAI has it."""

    value: float
    currency: str = Field(description="Three small letters of ISO 4217.")


class BatchCost(_Shape):
    """What the rows that have a result have cost."""

    gpu_seconds: float = Field(
        description="Seconds of GPUs. What an engine computes is shared among the rows in it by "
        "their tokens; the time in which it starts or idles is nobody's."
    )
    by_pool: dict[str, float] = Field(description="The same by the pool that they ran on.")
    amount: Amount | None = Field(
        default=None,
        description="At the prices of the time when the batch was planned. Null without any.",
    )


def _encodable(text: str) -> str:
    """The text with `?` for each half of a surrogate pair: JSON can escape one, and UTF-8 not."""
    return text.encode(errors="replace").decode()


#: May quote what a client has written.
_Quoting = Annotated[str, AfterValidator(_encodable)]


class BatchError(_Shape):
    """One reason why an input was refused; `line` counts from 1, and null is the whole file."""

    code: str | None
    line: int | None = None
    message: _Quoting
    param: _Quoting | None = None


class BatchErrors(_Shape):
    object: Literal["list"] = "list"
    data: list[BatchError]


class BatchWarning(_Shape):
    """What keeps the batch from being done as asked, although it runs.

    `deadline_at_risk` until the batch ends; `ignored_field` and `refused_request` for good.
    """

    code: Literal["deadline_at_risk", "ignored_field", "refused_request"]
    message: _Quoting


class RestsOn(_Shape):
    """What a prediction rests on."""

    pace: Literal["batch", "kind", "lane"] = Field(
        description="Whose rows told the engine's pace: the batch's own, those of its endpoint and "
        "length, or all rows of the lane."
    )
    batches: int = Field(
        description="How many batches that have ended the range is made of: those of the lane that "
        "were most like this one. 0 for a range that is only supposed."
    )
    start_seconds: int = Field(
        description="Seconds of the prediction in which the engine starts. 0 while it runs."
    )


class Predicted(_Shape):
    """When the batch will end, in Unix seconds, as a range."""

    finish_at: int = Field(description="Half of such batches have ended by then (P50).")
    finish_p80_at: int = Field(description="Four of five such batches have ended by then (P80).")
    rests_on: RestsOn


class TableError(_Shape):
    """Why a table is not what, or not where, the client wanted."""

    code: Literal["destination_refused", "carried_lost", "table_failed"]
    message: str


class BatchTable(_Shape):
    """The table that a batch has made of its results, in the order of its input."""

    format: Literal["parquet", "jsonl", "csv"]
    url: str | None = Field(description="The table's folder in S3. Null if there is no table.")
    rows: int
    bytes: int
    file_ids: list[str] = Field(description="Its files, in order.")
    error: TableError | None = None


class Batch(_Shape):
    """The batch object; timestamps are Unix seconds."""

    id: str
    object: Literal["batch"] = "batch"
    endpoint: str
    model: str | None = None
    errors: BatchErrors | None = None
    input_file_id: str
    completion_window: str
    status: Status
    output_file_id: str | None = None
    error_file_id: str | None = None
    created_at: int
    in_progress_at: int | None = None
    expires_at: int
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    request_counts: RequestCounts = RequestCounts()
    usage: Usage = Usage()
    metadata: dict[str, str] | None = None
    #: Not in OpenAI's API, and only present while it is true.
    paused: bool = Field(default=False, exclude_if=lambda paused: not paused)
    #: Not in OpenAI's API, and only present while the batch takes rows.
    open: bool = Field(default=False, exclude_if=lambda is_open: not is_open)
    #: Not in OpenAI's API, and only present if the batch is a stage of that pipeline.
    pipeline: str | None = Field(default=None, exclude_if=lambda one: one is None)
    #: Not in OpenAI's API, and only present if there are any: requests that were given an answer of
    #: an earlier batch.
    cached: int = Field(default=0, exclude_if=lambda count: not count)
    #: Not in OpenAI's API, and only present if it happened: how often a request was asked again
    #: because its answer did not fit the schema. What that took is in the usage and the cost.
    asked_again: int = Field(default=0, exclude_if=lambda count: not count)
    #: Not in OpenAI's API, and only present if there is one and the batch has not ended.
    warnings: list[BatchWarning] = Field(default=[], exclude_if=lambda warnings: not warnings)
    #: Not in OpenAI's API, and only present while the batch runs and the lane's pace is known.
    predicted: Predicted | None = Field(default=None, exclude_if=lambda one: one is None)
    #: Not in OpenAI's API, and only present once rows have a result.
    cost: BatchCost | None = Field(default=None, exclude_if=lambda cost: cost is None)
    #: Not in OpenAI's API, and only present once it is made.
    table: BatchTable | None = Field(default=None, exclude_if=lambda table: table is None)


ModelState = Literal["cold", "starting", "warm"]


class Model(_Shape):
    """A model that the catalog serves."""

    id: str
    created: int
    object: Literal["model"] = "model"
    owned_by: str = "batchyard"
    #: The endpoints whose requests it answers.
    endpoints: list[str] = []
    #: Whether it takes live calls, besides rows of batches.
    live: bool = False
    #: `warm` if a replica of its engine runs, `starting` if one is wanted, and otherwise `cold`.
    state: ModelState = "cold"
    #: How many of them run.
    replicas: int = 0


class CursorPage(_Shape, Generic[T]):
    """A page of a listing; the next one starts after `data[-1].id`."""

    object: Literal["list"] = "list"
    data: list[T]
    first_id: str | None = None
    last_id: str | None = None
    has_more: bool = False

    @classmethod
    def of(cls, data: list[L], *, has_more: bool) -> "CursorPage[L]":
        """The page that holds `data`."""
        return CursorPage(
            data=data,
            first_id=data[0].id if data else None,
            last_id=data[-1].id if data else None,
            has_more=has_more,
        )


class ErrorBody(_Shape):
    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorEnvelope(_Shape):
    """The body of every error answer."""

    error: ErrorBody = Field()
