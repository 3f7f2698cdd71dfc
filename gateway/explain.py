"""Why a batch is where it is: what it waits for, what is ahead of it, when it may be done."""

import asyncio
import time
from typing import Any, Literal, NamedTuple

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from gateway.auth import OwnBatch
from gateway.dependencies import Services, Use
from shared.lifecycle import FINAL, Status
from shared.openai.shapes import RequestCounts
from shared.slices import ReleaseReason
from shared.state import BatchRecord, JobRecord
from shared.state.positions import Attempt, LanePosition

router = APIRouter()

#: A lane job gives a sign of life each second.
_SILENT_SECONDS = 15
_ENGINE_TROUBLE = (
    ReleaseReason.ENGINE_DIED,
    ReleaseReason.ENGINE_UNAVAILABLE,
    ReleaseReason.ENGINE_FAILED,
)

Code = Literal[
    "planning",
    "paused",
    "lane_starting",
    "lane_silent",
    "no_room",
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
    runs_on: str | None = Field(
        default=None,
        exclude_if=lambda pool: pool is None,
        description="the pool whose engine takes the rows now, of a model with several pools",
    )


class LaneShare(LaneNow):
    """One of several lanes that the batch runs on, and what it has there."""

    rows_left: int = Field(description="of the batch: those of this lane without a result")
    pending: int = Field(description="slices, as the next two")
    ready: int
    running: int
    waits_for: Waiting | None
    ahead: AheadOf | None
    finish_at: int | None = Field(description="Unix seconds; null where nothing can be said")
    failed: str | None = Field(
        description="why the lane's engine could not start; its rows get errors, the others go on"
    )


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
    lanes: list[LaneShare] = Field(
        default=[],
        exclude_if=lambda lanes: not lanes,
        description="instead of `ahead` and `lane`, for a batch whose requests go to several lanes",
    )
    predicted: Predicted | None = None
    running: list[SliceTry] = Field(default=[], description="at most 20")
    retried_slices: int = 0
    retries: list[SliceTry] = Field(default=[], description="at most 20")


class Standing(NamedTuple):
    """All that the explanation of a planned batch on a lane is made from."""

    batch: BatchRecord
    lane: str
    look: LanePosition
    job: JobRecord
    failure: str | None

    @property
    def rows_left(self) -> int:
        """Of the batch on this lane."""
        if len(self.batch.lanes) > 1:
            return self.batch.number(f"rows_left:{self.lane}")
        return self.batch.number("total") - _done(self.batch)

    @property
    def running(self) -> int:
        """Slices of the batch on this lane; of several lanes not told apart by their claims."""
        if len(self.batch.lanes) > 1:
            left = self.batch.number(f"slices_left:{self.lane}")
            return max(0, left - self.look.pending - self.look.ready)
        return self.look.claimed


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
    shape = batch.to_openai()
    plan = batch.fields.get("plan")
    told = {
        "id": batch.id,
        "status": batch.status,
        "paused": shape.paused,
        "priority": batch.number("priority"),
        "request_counts": shape.request_counts,
    }
    if not batch.lanes or plan is None:
        waiting = unplanned(batch)
        return Explanation(
            **told, waits_for=waiting, summary=summary(batch, waiting, 0), slices=SliceCounts()
        )
    standings = await asyncio.gather(
        *(_standing(services, batch, lane, plan) for lane in batch.lanes)
    )
    now = time.time()
    # What is counted of all lanes is the same in each.
    look, waiting = standings[0].look, all_wait_for(standings, now=now)
    is_open = batch.status is Status.IN_PROGRESS
    [only, *others] = standings
    return Explanation(
        **told,
        waits_for=waiting,
        summary=summary(batch, waiting, look.claimed) + "".join(map(_spilled, standings)),
        slices=SliceCounts(
            total=batch.number("slices_total"),
            pending=sum(one.look.pending for one in standings) if is_open else 0,
            ready=sum(one.look.ready for one in standings) if is_open else 0,
            running=look.claimed,
            committed=batch.number("slices_committed"),
        ),
        ahead=None if others else _ahead(only),
        lane=None if others else LaneNow(**_lane_now(only)),
        lanes=[_share(one, now) for one in standings] if others else [],
        predicted=all_predicted(standings, now=now),
        running=[_shown(one) for one in look.running],
        retried_slices=look.retried,
        retries=[_shown(one) for one in look.retries],
    )


async def _standing(services: Services, batch: BatchRecord, lane: str, plan: str) -> Standing:
    state = services.state
    return Standing(
        batch,
        lane,
        await state.positions.find(batch.id, lane, plan, lanes=batch.lanes),
        await state.lanes.job(lane),
        await state.lanes.failure(lane),
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


def all_wait_for(standings: list[Standing], *, now: float) -> Waiting | None:
    """What a planned batch waits for; None while any of it runs, or once it has ended."""
    if len(standings) == 1:
        return waits_for(standings[0], now=now)
    batch, look = standings[0].batch, standings[0].look
    if batch.status is not Status.IN_PROGRESS or batch.to_openai().paused:
        return waits_for(standings[0], now=now)
    left = [one for one in standings if one.rows_left]
    if look.claimed or not left:
        return None
    waiting = _not_running(left[0], now)
    return Waiting(code=waiting.code, message=f"Lane {left[0].lane}: {waiting.message}")


def waits_for(standing: Standing, *, now: float) -> Waiting | None:
    """What a planned batch waits for on its lane; None while it runs, or has ended."""
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
    if job.full and not job.runs_on:
        return Waiting(code="no_room", message=_no_room(job, now))
    if any(one.reason in _ENGINE_TROUBLE for one in look.retries):
        return Waiting(
            code="engine_failed",
            message="The lane's engine died or could not be reached, and is started again.",
        )
    return Waiting(code="engine_starting", message="The lane's engine is starting.")


def _no_room(job: JobRecord, now: float) -> str:
    full = f"Pool {job.full[0]} has" if len(job.full) == 1 else f"Pools {', '.join(job.full)} have"
    if not job.spills_at:
        return f"{full} no room for the engine."
    seconds = max(0.0, job.spills_at - now)
    return f"{full} no room for the engine; the next pool is asked in {seconds:.0f} seconds."


def all_predicted(standings: list[Standing], *, now: float) -> Predicted | None:
    """When the batch may start, on the first of its lanes, and finish, on the last."""
    found = [predicted(one, now=now) for one in standings if one.rows_left or len(standings) == 1]
    known = [one for one in found if one is not None]
    if not known or len(known) < len(found):
        return None
    starts = [one.start_at for one in known if one.start_at is not None]
    return Predicted(
        start_at=min(starts, default=None), finish_at=max(one.finish_at for one in known)
    )


def predicted(standing: Standing, *, now: float) -> Predicted | None:
    """When the batch may start and finish on its lane; None where nothing can be said."""
    batch, look, rate = standing.batch, standing.look, standing.job.rate
    if batch.status is not Status.IN_PROGRESS or batch.to_openai().paused or rate <= 0:
        return None
    missing = standing.rows_left
    has_begun = bool(_done(batch) or look.claimed)
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


def _spilled(standing: Standing) -> str:
    own, pool = standing.lane.rpartition("@")[2], standing.job.runs_on
    if not standing.running or not pool or pool == own:
        return ""
    if own in standing.job.full:
        return f" On pool {pool}, because pool {own} has no room for the engine."
    return f" On pool {pool}, while the engine of pool {own} starts."


def _done(batch: BatchRecord) -> int:
    return batch.number("completed") + batch.number("failed")


def _ahead(standing: Standing) -> AheadOf | None:
    batch = standing.batch
    if batch.status is not Status.IN_PROGRESS or batch.to_openai().paused:
        return None
    return AheadOf(**standing.look.ahead._asdict())


def _lane_now(standing: Standing) -> dict[str, Any]:
    look, job = standing.look, standing.job
    return {
        "name": standing.lane,
        "job": job.id or None,
        "rows_per_second": round(job.rate, 2),
        "running_slices": look.lane_claimed,
        "batches": look.lane_batches,
        "missing_rows": look.lane_rows,
        "tenants": look.tenants,
        "runs_on": job.runs_on or None,
    }


def _share(standing: Standing, now: float) -> LaneShare:
    batch, look = standing.batch, standing.look
    is_open = batch.status is Status.IN_PROGRESS
    is_waiting = is_open and standing.rows_left > 0 and not standing.running
    paused = batch.to_openai().paused
    told = predicted(standing, now=now) if standing.rows_left else None
    return LaneShare(
        **_lane_now(standing),
        rows_left=standing.rows_left,
        pending=look.pending if is_open else 0,
        ready=look.ready if is_open else 0,
        running=standing.running if is_open else 0,
        waits_for=_not_running(standing, now) if is_waiting and not paused else None,
        ahead=_ahead(standing) if standing.rows_left else None,
        finish_at=told.finish_at if told else None,
        failed=batch.fields.get(f"lane_failed:{standing.lane}"),
    )


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
