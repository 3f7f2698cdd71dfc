"""The answer of `explain_batch`, as types. Pure."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from shared.lane_waits import Waiting
from shared.lifecycle import Status
from shared.openai.shapes import BatchWarning, Predicted, RequestCounts
from shared.ordering.load import Load


class _Shape(BaseModel):
    model_config = ConfigDict(frozen=True)


class SliceCounts(_Shape):
    """The batch's slices: runs of consecutive requests that are run and retried together."""

    total: int = 0
    pending: int = 0
    ready: int = 0
    running: int = 0
    committed: int = 0


class AheadOf(_Shape):
    """What the lane runs before the batch's next slice: your own work in numbers, others' not."""

    slices: int = Field(description="Slices of your other batches that run first.")
    rows: int = Field(description="Rows in those slices.")
    tokens: int = Field(description="Predicted tokens in those slices.")
    others: Load = Field(description="Rows of other tenants that run first, as a class.")


class LaneNow(_Shape):
    """The lane that the batch runs on: one model on one pool."""

    name: str
    job: str | None = Field(description="The lane job's id in Ray. Null while no job runs.")
    rows_per_second: float = Field(
        description="The lane's measured rate, rounded down to 1, 2 or 5 times a power of ten. "
        "0 before there is a measurement."
    )
    batches: int = Field(description="Your batches that run or wait on the lane.")
    missing_rows: int = Field(description="Rows of those batches that have no result yet.")
    others: Load = Field(
        description="Rows of other tenants on the lane that have no result yet, as a class."
    )
    runs_on: str | None = Field(
        default=None,
        exclude_if=lambda pool: pool is None,
        description="The pool whose engine runs the rows now. Only for models with several pools.",
    )


class LaneShare(LaneNow):
    """One of several lanes that the batch runs on, and the part of the batch that runs there."""

    rows_left: int = Field(description="Rows of the batch for this lane that have no result yet.")
    pending: int = Field(description="Slices of the batch that wait behind the ready ones.")
    ready: int = Field(description="Slices of the batch that the lane job may take next.")
    running: int = Field(description="Slices of the batch that are running.")
    waits_for: Waiting | None
    ahead: AheadOf | None
    finish_at: int | None = Field(
        description="Predicted end (P50) in Unix seconds. Null if it cannot be predicted."
    )
    finish_p80_at: int | None = Field(description="The same for the P80.")
    failed: str | None = Field(
        description="Why the lane's engine could not start. Its rows get errors; the other lanes "
        "continue."
    )


class PredictedRun(Predicted):
    """When the batch will begin to run and end. It changes with what others submit."""

    start_at: int | None = Field(
        description="In Unix seconds, from what is ahead and the lane's rate. Null once the batch "
        "has begun to run."
    )


class SliceTry(_Shape):
    """A slice that is running, or that was given back at least once."""

    index: int
    job: str = Field(description="The lane job that took the slice last.")
    attempts: int
    strikes: int = Field(description="How often an engine died while it ran the slice.")
    reason: str | None = Field(description="Why the slice was given back last.")
    given_back_at: int | None


class Explanation(_Shape):
    """Why the batch is where it is."""

    id: str
    object: Literal["batch.explanation"] = "batch.explanation"
    status: Status
    paused: bool
    priority: int
    summary: str
    waits_for: Waiting | None
    request_counts: RequestCounts
    slices: SliceCounts
    ahead: AheadOf | None = None
    lane: LaneNow | None = None
    lanes: list[LaneShare] = Field(
        default=[],
        exclude_if=lambda lanes: not lanes,
        description="Replaces `ahead` and `lane` for a batch whose requests go to several lanes.",
    )
    predicted: PredictedRun | None = None
    warnings: list[BatchWarning] = Field(
        default=[],
        exclude_if=lambda warnings: not warnings,
        description="What the batch is warned of; only present if there is something.",
    )
    running: list[SliceTry] = Field(default=[], description="Running slices, at most 20.")
    retried_slices: int = 0
    retries: list[SliceTry] = Field(
        default=[], description="Slices that were run again, at most 20."
    )
