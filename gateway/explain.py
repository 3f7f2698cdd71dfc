"""Why a batch is where it is: reads what Redis knows of its lanes and explains it."""

import asyncio
import time

from fastapi import APIRouter

from gateway.auth import OwnBatch
from gateway.dependencies import Services, Use
from gateway.explanation import Explanation, SliceCounts, SliceTry
from gateway.lane_position import (
    LanePosition,
    OwnAhead,
    ahead_of,
    all_wait_for,
    lane_now,
    lane_share,
    near_deadline_summary,
    predicted_run,
    spill_summary,
    summary,
    unplanned,
)
from gateway.route_docs import addition
from shared.engines import EngineRecord
from shared.lane_waits import Waiting, starts_in
from shared.lifecycle import Status
from shared.ordering.load import load_of
from shared.ordering.pace import TokensOfRows, rows_per_second
from shared.slices import ReleaseReason
from shared.state import BatchRecord, JobRecord
from shared.state.batch_record import predicted_of
from shared.state.positions import Attempt, BatchInLane

router = APIRouter()

_ENGINE_TROUBLE = (
    ReleaseReason.ENGINE_DIED,
    ReleaseReason.ENGINE_UNAVAILABLE,
    ReleaseReason.ENGINE_FAILED,
)


@router.get(
    "/batches/{batch_id}/explain",  # noqa: FAST003  # the dependency that gives the batch reads it
    openapi_extra=addition("An addition to OpenAI's API. SDK: client.get(path, cast_to=object)."),
)
async def explain_batch(batch: OwnBatch, services: Use) -> Explanation:
    """What the batch waits for, where it stands in its lane, and when it may start and finish.

    Also where its slices are, and which were run again and why. The answer is short for batches of
    any size. The work of other tenants appears only as a class, and predictions are made from it.
    """
    plan = batch.fields.get("plan")
    if not batch.lanes or plan is None:
        waiting = unplanned(batch.status, is_paused="paused" in batch.fields)
        return _explanation(batch, waiting)
    looks = await asyncio.gather(*(_look(services, batch, lane, plan) for lane in batch.lanes))
    positions = [position for position, _ in looks]
    # What is counted over all lanes is the same in each.
    look = looks[0][1]
    now, shape = time.time(), batch.to_openai()
    first, *others = positions
    is_open = first.is_open
    more = "".join(map(spill_summary, positions)) + _near_deadline(services, batch, now=now)
    waiting = await _held(services, batch) or all_wait_for(positions, now=now)
    explanation = _explanation(batch, waiting, look.claimed, more)
    return explanation.model_copy(
        update={
            "slices": SliceCounts(
                total=batch.number("slices_total"),
                pending=sum(one.pending for one in positions) if is_open else 0,
                ready=sum(one.ready for one in positions) if is_open else 0,
                running=look.claimed,
                committed=batch.number("slices_committed"),
            ),
            "ahead": None if others else ahead_of(first),
            "lane": None if others else lane_now(first),
            "lanes": [lane_share(one, now=now) for one in positions] if others else [],
            "predicted": predicted_run(shape.predicted, positions, now=now),
            "warnings": shape.warnings,
            "running": [_slice_try(one) for one in look.running],
            "retried_slices": look.retried,
            "retries": [_slice_try(one) for one in look.retries],
        }
    )


async def _held(services: Services, batch: BatchRecord) -> Waiting | None:
    """That the batch waits for the next day, if engines have died of its tenant's requests."""
    limit = services.settings.max_engine_deaths_per_day
    is_open = batch.status is Status.IN_PROGRESS
    if not is_open or batch.tenant not in await services.state.tenants.spent(limit):
        return None
    return Waiting(
        code="engine_deaths",
        message="As many engines have died of your requests today as may in a day. What has not "
        "begun waits until midnight UTC, or for your operator to raise the limit.",
    )


def _near_deadline(services: Services, batch: BatchRecord, *, now: float) -> str:
    """Who gives way at the end of its window, for a batch that runs."""
    if batch.status is not Status.IN_PROGRESS:
        return ""
    models = (services.catalog.models.get(lane.rpartition("@")[0]) for lane in batch.lanes)
    expires_at = batch.number("expires_at")
    said = (
        near_deadline_summary(model.live, expires_at=expires_at, now=now)
        for model in models
        if model is not None
    )
    return next(filter(None, said), "")


def _explanation(
    batch: BatchRecord, waiting: Waiting | None, claimed: int = 0, more: str = ""
) -> Explanation:
    """What every batch's explanation says."""
    shape = batch.to_openai()
    first_error = batch.fields.get("first_error")
    return Explanation(
        id=batch.id,
        status=batch.status,
        paused=shape.paused,
        priority=batch.number("priority"),
        summary=summary(batch.status, waiting, claimed, first_error) + more,
        waits_for=waiting,
        request_counts=shape.request_counts,
        slices=SliceCounts(),
    )


async def _look(
    services: Services, batch: BatchRecord, lane: str, plan: str
) -> tuple[LanePosition, BatchInLane]:
    state = services.state
    look = await state.positions.find(batch.id, lane, plan, lanes=batch.lanes, tenant=batch.tenant)
    job, failure, engine = await asyncio.gather(
        state.lanes.job(lane), state.lanes.failure(lane), state.engines.one(lane)
    )
    return _position(batch, lane, look, job, failure, engine), look


def _position(
    batch: BatchRecord,
    lane: str,
    look: BatchInLane,
    job: JobRecord,
    failure: str | None,
    engine: EngineRecord | None,
) -> LanePosition:
    done = batch.number("completed") + batch.number("failed")
    rows_left, running = batch.number("total") - done, look.claimed
    if len(batch.lanes) > 1:
        # The claims of a batch are not counted by lane.
        rows_left = batch.number(f"rows_left:{lane}")
        running = max(0, batch.number(f"slices_left:{lane}") - look.pending - look.ready)
    return LanePosition(
        lane=lane,
        status=batch.status,
        is_paused=batch.to_openai().paused,
        has_begun=bool(done or look.claimed),
        rows_left=rows_left,
        pending=look.pending,
        ready=look.ready,
        running=running,
        claimed=look.claimed,
        ahead=OwnAhead(*look.own_ahead),
        others_ahead=load_of(look.others_ahead.rows),
        is_lane_busy=look.lane_claimed > 0,
        own_batches=look.own_batches,
        own_rows=look.own_rows,
        others=load_of(look.other_rows),
        other_tenants=look.other_tenants,
        job=job.to_lane_job(),
        failure=failure,
        engine=engine,
        had_engine_trouble=any(one.reason in _ENGINE_TROUBLE for one in look.retries),
        takes_rows=batch.takes_rows,
        lane_failed=batch.fields.get(f"lane_failed:{lane}"),
        own_rate=_own_rate(batch, lane, job),
        starts_in=starts_in(job.to_start(), engine, now=time.time()),
        ends=_ends(batch, lane),
    )


def _own_rate(batch: BatchRecord, lane: str, job: JobRecord) -> float:
    """How many of the batch's rows for the lane its engine runs in a second; 0 if nobody knows."""
    # Batches of earlier versions have no such field.
    parts = batch.fields.get("lane_tokens", "").split()
    if len(parts) != len(batch.lanes):
        return 0.0
    tokens, rows = map(int, parts[batch.lanes.index(lane)].split("/"))
    return rows_per_second(job.pace, batch.fields["endpoint"], TokensOfRows(tokens, rows))


def _ends(batch: BatchRecord, lane: str) -> tuple[int | None, int | None]:
    """The predicted end of what the batch has on one of its lanes."""
    predicted = predicted_of(batch.fields)
    if predicted is None or lane not in predicted.get("by_lane", {}):
        return None, None
    finish_at, finish_p80_at = predicted["by_lane"][lane]
    return finish_at, finish_p80_at


def _slice_try(attempt: Attempt) -> SliceTry:
    return SliceTry(
        index=attempt.number,
        job=attempt.job,
        attempts=attempt.epoch,
        strikes=attempt.strikes,
        reason=attempt.reason or None,
        given_back_at=attempt.given_back_at or None,
    )
