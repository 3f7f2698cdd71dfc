"""Why a batch is where it is: what it waits for, what is ahead of it, when it may be done."""

import time
from typing import Literal, NamedTuple

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from gateway.auth import OwnBatch
from gateway.dependencies import Use
from shared.lifecycle import FINAL, Status
from shared.openai import RequestCounts
from shared.slices import GivenBack
from shared.state import BatchRecord, JobRecord
from shared.state.live import Attempt, Look

router = APIRouter()

#: A lane job gives a sign of life each second.
_SILENT_SECONDS = 15
_ENGINE_TROUBLE = (GivenBack.ENGINE_DIED, GivenBack.ENGINE_UNAVAILABLE, GivenBack.ENGINE_FAILED)

Code = Literal[
    "planning",
    "paused",
    "lane_starting",
    "lane_silent",
    "engine_starting",
    "engine_failed",
    "others",
    "finalizing",
    "cancelling",
]


class _Shape(BaseModel):
    model_config = ConfigDict(frozen=True)


class Waiting(_Shape):
    """What must happen before more of the batch runs."""

    code: Code
    message: str


class SliceCounts(_Shape):
    """The batch's slices: runs of consecutive requests that are run and retried together."""

    total: int = 0
    pending: int = 0
    ready: int = 0
    running: int = 0
    committed: int = 0


class AheadOf(_Shape):
    """Ready slices of the lane, of all tenants, that run before the batch's first one."""

    slices: int
    rows: int
    tokens: int = Field(description="predicted")


class LaneNow(_Shape):
    """The lane that the batch runs on: one model on one pool."""

    name: str
    job: str | None = Field(description="of Ray, null while none runs")
    rows_per_second: float = Field(description="measured; 0 before there is a measure")
    running_slices: int
    batches: int = Field(description="that run or wait, of all tenants")
    missing_rows: int = Field(description="that these have not finished")
    tenants: int


class Predicted(_Shape):
    """Unix seconds, from the lane's measured rate and a fair share between its tenants."""

    start_at: int | None = Field(description="null when the batch has begun")
    finish_at: int


class SliceTry(_Shape):
    """A slice that is running, or that was given back at least once."""

    index: int
    job: str = Field(description="the lane job that took it last")
    attempts: int
    strikes: int = Field(description="how often an engine died with it")
    reason: str | None = Field(description="why it was given back last")
    given_back_at: int | None


class Explanation(_Shape):
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
    predicted: Predicted | None = None
    running: list[SliceTry] = Field(default=[], description="at most 20")
    retried_slices: int = 0
    retries: list[SliceTry] = Field(default=[], description="at most 20")


class Standing(NamedTuple):
    """All that the explanation of a planned batch is made from."""

    batch: BatchRecord
    look: Look
    job: JobRecord
    failure: str | None


@router.get(
    "/batches/{batch_id}/explain",  # noqa: FAST003  # what gives the batch takes it
    openapi_extra={
        "x-batchyard": "An addition to OpenAI's API. SDK: client.get(path, cast_to=object)."
    },
)
async def explain_batch(batch: OwnBatch, services: Use) -> Explanation:
    """What the batch waits for, where it stands in its lane, and when it may start and finish.

    Also where its slices are, and which were run again and why. The answer is short for batches of
    any size. Predictions change with what others submit.
    """
    state = services.state
    shape = batch.to_openai()
    lane, plan = batch.fields.get("lane"), batch.fields.get("plan")
    told = {
        "id": batch.id,
        "status": batch.status,
        "paused": shape.paused,
        "priority": batch.number("priority"),
        "request_counts": shape.request_counts,
    }
    if lane is None or plan is None:
        waiting = unplanned(batch)
        return Explanation(
            **told, waits_for=waiting, summary=summary(batch, waiting, 0), slices=SliceCounts()
        )
    standing = Standing(
        batch,
        await state.live.look(batch.id, lane, plan),
        await state.lanes.job(lane),
        await state.lanes.failure(lane),
    )
    now = time.time()
    look, waiting = standing.look, waits_for(standing, now=now)
    is_open = batch.status is Status.IN_PROGRESS
    return Explanation(
        **told,
        waits_for=waiting,
        summary=summary(batch, waiting, look.claimed),
        slices=SliceCounts(
            total=batch.number("slices_total"),
            pending=look.pending if is_open else 0,
            ready=look.ready if is_open else 0,
            running=look.claimed,
            committed=batch.number("slices_committed"),
        ),
        ahead=AheadOf(**look.ahead._asdict()) if is_open and not shape.paused else None,
        lane=LaneNow(
            name=lane,
            job=standing.job.id or None,
            rows_per_second=round(standing.job.rate, 2),
            running_slices=look.lane_claimed,
            batches=look.lane_batches,
            missing_rows=look.lane_rows,
            tenants=look.tenants,
        ),
        predicted=predicted(standing, now=now),
        running=[_shown(one) for one in look.running],
        retried_slices=look.retried,
        retries=[_shown(one) for one in look.retries],
    )


def unplanned(batch: BatchRecord) -> Waiting | None:
    """What a batch without a plan waits for."""
    match batch.status:
        case Status.VALIDATING if "paused" in batch.fields:
            return Waiting(
                code="paused",
                message="The batch is paused. Its input is checked, and then it waits to be "
                "resumed.",
            )
        case Status.VALIDATING:
            return Waiting(code="planning", message="The input is being read and checked.")
        case Status.CANCELLING:
            return Waiting(code="cancelling", message="The batch is about to be cancelled.")
        case _:
            return None


def waits_for(standing: Standing, *, now: float) -> Waiting | None:
    """What a planned batch waits for; None while it runs, or has ended."""
    batch, look = standing.batch, standing.look
    match batch.status:
        case Status.FINALIZING | Status.CANCELLING:
            code: Code = "finalizing" if batch.status is Status.FINALIZING else "cancelling"
            if look.claimed:
                return Waiting(code=code, message=f"{_slices(look.claimed)} must end first.")
            return Waiting(code=code, message="The result files are being written.")
        case Status.IN_PROGRESS if batch.to_openai().paused:
            still = f" {_slices(look.claimed)} will still end." if look.claimed else ""
            return Waiting(
                code="paused", message=f"The batch is paused until it is resumed.{still}"
            )
        case Status.IN_PROGRESS if not look.claimed:
            return _not_running(standing, now)
        case _:
            return None


def _not_running(standing: Standing, now: float) -> Waiting:  # noqa: PLR0911  # one a reason
    look, job = standing.look, standing.job
    if standing.failure is not None:
        return Waiting(
            code="engine_failed", message=f"The lane's engine cannot start: {standing.failure}"
        )
    if not job.id:
        return Waiting(code="lane_starting", message="A lane job is about to be submitted.")
    if not job.beat_at:
        return Waiting(
            code="lane_starting",
            message=f"The lane job was submitted {now - job.opened_at:.0f} seconds ago and is "
            "starting.",
        )
    if now - job.beat_at > _SILENT_SECONDS:
        return Waiting(
            code="lane_silent",
            message=f"The lane job has given no sign of life for {now - job.beat_at:.0f} seconds. "
            "It is replaced if it gives none soon.",
        )
    if look.lane_claimed:
        return Waiting(
            code="others",
            message=f"Other batches have their turn: {_slices(look.lane_claimed)} running, "
            f"{look.ahead.slices} more ahead. Tenants of a lane share it by predicted tokens.",
        )
    if any(one.reason in _ENGINE_TROUBLE for one in look.retries):
        return Waiting(
            code="engine_failed",
            message="The lane's engine died or could not be reached, and is started again.",
        )
    return Waiting(code="engine_starting", message="The lane's engine is starting.")


def predicted(standing: Standing, *, now: float) -> Predicted | None:
    """When the batch may start and finish; None where nothing can be said."""
    batch, look, rate = standing.batch, standing.look, standing.job.rate
    if batch.status is not Status.IN_PROGRESS or batch.to_openai().paused or rate <= 0:
        return None
    done = batch.number("completed") + batch.number("failed")
    missing = batch.number("total") - done
    has_begun = bool(done or look.claimed)
    # While others have work, each tenant gets its share; when they have none, one gets it all.
    rows = max(missing, min(look.lane_rows, missing * max(1, look.tenants)))
    return Predicted(
        start_at=None if has_begun else round(now + look.ahead.rows / rate),
        finish_at=round(now + rows / rate),
    )


def summary(batch: BatchRecord, waiting: Waiting | None, claimed: int) -> str:
    """The explanation in a sentence or two."""
    if waiting is not None:
        return waiting.message
    if batch.status in FINAL:
        reason = batch.fields.get("first_error")
        return f"The batch has ended as {batch.status}." + (f" {reason}" if reason else "")
    return f"{_slices(claimed)} running."


def _slices(count: int) -> str:
    return f"{count} slice" if count == 1 else f"{count} slices"


def _shown(one: Attempt) -> SliceTry:
    return SliceTry(
        index=one.number,
        job=one.job,
        attempts=one.epoch,
        strikes=one.strikes,
        reason=one.reason or None,
        given_back_at=one.given_back_at or None,
    )
