"""A batch's position on its lanes: what the batch waits for, and when it will end.

Pure. A position knows the load of other tenants only as a class, so no answer can reveal more.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

from gateway.explanation import AheadOf, LaneNow, LaneShare, PredictedRun
from shared.catalog import LiveCalls
from shared.engines import EngineRecord
from shared.lane_waits import (
    Code,
    LaneJob,
    Waiting,
    holds_claims_back,
    waits_for_engine,
    waits_for_job,
)
from shared.lifecycle import FINAL, Status
from shared.openai.shapes import Predicted
from shared.ordering.load import Load, rounded_rate, typical_rows


class OwnAhead(NamedTuple):
    """Ready slices of the tenant's other batches that run before the batch's first one."""

    slices: int
    rows: int
    tokens: int


@dataclass(frozen=True)
class LanePosition:
    """A planned batch on one of its lanes."""

    lane: str
    status: Status
    is_paused: bool
    #: Whether any row of the batch has run or is running, on any lane.
    has_begun: bool
    rows_left: int
    #: Slices of the batch on this lane.
    pending: int
    ready: int
    running: int
    #: Slices of the batch that run on any lane.
    claimed: int
    ahead: OwnAhead
    others_ahead: Load
    #: Whether any slice of any batch runs on the lane.
    is_lane_busy: bool
    own_batches: int
    own_rows: int
    others: Load
    other_tenants: int
    job: LaneJob
    #: Why the lane's engine cannot start, if it cannot.
    failure: str | None
    #: The lane's own engine as it was last seen; None if it is not deployed.
    engine: EngineRecord | None
    #: Whether an engine died under the batch or could not be reached.
    had_engine_trouble: bool
    #: Whether it is an open batch that may get more rows.
    takes_rows: bool
    #: Why the batch lost this lane's rows, if it did.
    lane_failed: str | None
    #: How many of the batch's rows the engine runs in a second; 0 if that is not known.
    own_rate: float = 0.0
    #: Seconds until the lane gives results, if it starts.
    starts_in: float = 0.0
    #: The predicted end of what it has on the lane, P50 and P80, in Unix seconds.
    ends: tuple[int | None, int | None] = (None, None)

    @property
    def is_open(self) -> bool:
        return self.status is Status.IN_PROGRESS

    @property
    def may_run(self) -> bool:
        return self.is_open and not self.is_paused


def unplanned(status: Status, *, is_paused: bool) -> Waiting | None:
    """What a batch without a plan waits for."""
    match status:
        case Status.VALIDATING if is_paused:
            return Waiting(
                code="paused",
                message="The batch is paused. Its input is being checked, and then it waits to be "
                "resumed.",
            )
        case Status.VALIDATING:
            return Waiting(code="planning", message="The input is being read and checked.")
        case Status.CANCELLING:
            return Waiting(code="cancelling", message="The batch is about to be cancelled.")
        case _:
            return None


def all_wait_for(positions: list[LanePosition], *, now: float) -> Waiting | None:
    """What a planned batch waits for; None while any of it runs, and once it has ended."""
    first = positions[0]
    if len(positions) == 1 or not first.may_run:
        return waits_for(first, now=now)
    left = [position for position in positions if position.rows_left]
    if not left or (first.claimed and not all(_is_held_back(one, now) for one in left)):
        return None
    waiting = _waits_to_run(left[0], now)
    return Waiting(code=waiting.code, message=f"Lane {left[0].lane}: {waiting.message}")


def waits_for(position: LanePosition, *, now: float) -> Waiting | None:
    """What a planned batch waits for on its lane; None while it runs, and once it has ended."""
    claimed = position.claimed
    match position.status:
        case Status.FINALIZING | Status.CANCELLING:
            code: Code = "finalizing" if position.status is Status.FINALIZING else "cancelling"
            if claimed:
                return Waiting(code=code, message=f"{_slices(claimed)} must end first.")
            return Waiting(code=code, message="The result files are being written.")
        case Status.IN_PROGRESS if position.is_paused:
            running = f" {_slices(claimed)} will still end." if claimed else ""
            return Waiting(
                code="paused", message=f"The batch is paused until it is resumed.{running}"
            )
        case Status.IN_PROGRESS if position.takes_rows and not position.rows_left:
            return Waiting(
                code="requests",
                message="All requests that the batch has are done. It is open: it waits for more, "
                "or to be closed.",
            )
        case Status.IN_PROGRESS if not claimed or _is_held_back(position, now):
            return _waits_to_run(position, now)
        case _:
            return None


def predicted_run(
    batch: Predicted | None, positions: list[LanePosition], *, now: float
) -> PredictedRun | None:
    """What is predicted of the batch, and when it may start on the first of its lanes."""
    if batch is None:
        return None
    starts = [
        start
        for position in positions
        if position.rows_left and (start := starts_at(position, now=now)) is not None
    ]
    return PredictedRun(start_at=min(starts, default=None), **dict(batch))


def starts_at(position: LanePosition, *, now: float) -> int | None:
    """When the batch may start on its lane; None if it has begun, or if nobody knows."""
    rate = position.own_rate or rounded_rate(position.job.rate)
    if not position.may_run or position.has_begun or not rate:
        return None
    rows_ahead = position.ahead.rows + typical_rows(position.others_ahead)
    return round(now + position.starts_in + rows_ahead / rate)


def summary(status: Status, waiting: Waiting | None, claimed: int, first_error: str | None) -> str:
    """The explanation in a sentence or two."""
    if waiting is not None:
        return waiting.message
    if status in FINAL:
        return f"The batch has ended as {status}." + (f" {first_error}" if first_error else "")
    return f"{_slices(claimed)} running."


def near_deadline_summary(live: LiveCalls | None, *, expires_at: int, now: float) -> str:
    """A sentence to append if the window closes soon and the model takes live calls."""
    if live is None or expires_at - now > live.deadline_seconds:
        return ""
    if live.near_deadline == "live_yields":
        return " Its window closes soon, so it makes no more room for live calls."
    return " Its window closes soon, and it still makes room for live calls."


def spill_summary(position: LanePosition) -> str:
    """A sentence to append if the lane's rows run on another pool than its own; else nothing."""
    own, pool = position.lane.rpartition("@")[2], position.job.runs_on
    if not position.running or not pool or pool == own:
        return ""
    if own in position.job.full_pools:
        return f" On pool {pool}, because pool {own} has no room for the engine."
    return f" On pool {pool}, while the engine of pool {own} starts."


def ahead_of(position: LanePosition) -> AheadOf | None:
    """What runs before the batch; None if the batch may not run at all."""
    if not position.may_run:
        return None
    return AheadOf(**position.ahead._asdict(), others=position.others_ahead)


def lane_now(position: LanePosition) -> LaneNow:
    """The lane, as its tenant may see it."""
    return LaneNow(**_lane_fields(position))


def lane_share(position: LanePosition, *, now: float) -> LaneShare:
    """The lane and the part of the batch that runs there."""
    has_rows, is_open = position.rows_left > 0, position.is_open
    is_running = position.running and not _is_held_back(position, now)
    waits = position.may_run and has_rows and not is_running
    finish_at, finish_p80_at = position.ends if has_rows and position.may_run else (None, None)
    return LaneShare(
        **_lane_fields(position),
        rows_left=position.rows_left,
        pending=position.pending if is_open else 0,
        ready=position.ready if is_open else 0,
        running=position.running if is_open else 0,
        waits_for=_waits_to_run(position, now) if waits else None,
        ahead=ahead_of(position) if has_rows else None,
        finish_at=finish_at,
        finish_p80_at=finish_p80_at,
        failed=position.lane_failed,
    )


def _waits_to_run(position: LanePosition, now: float) -> Waiting:
    job = position.job
    if (waiting := waits_for_job(job, position.failure, now=now)) is not None:
        return waiting
    if position.is_lane_busy and not _is_held_back(position, now):
        return Waiting(code="others", message=_others(position))
    trouble = position.had_engine_trouble
    return waits_for_engine(job, position.engine, had_engine_trouble=trouble, now=now)


def _is_held_back(position: LanePosition, now: float) -> bool:
    return holds_claims_back(position.job, position.engine, now=now)


def _others(position: LanePosition) -> str:
    ahead = []
    if position.ahead.slices:
        ahead.append(f"{_slices(position.ahead.slices)} of your other batches")
    if position.others_ahead != "none":
        ahead.append(f"{position.others_ahead} rows of other tenants")
    queue = f" Ahead of this one: {' and '.join(ahead)}." if ahead else ""
    return (
        f"Other batches are running on the lane.{queue} Tenants share a lane by predicted tokens."
    )


def _lane_fields(position: LanePosition) -> dict[str, Any]:
    return {
        "name": position.lane,
        "job": position.job.id or None,
        "rows_per_second": rounded_rate(position.job.rate),
        "batches": position.own_batches,
        "missing_rows": position.own_rows,
        "others": position.others,
        "runs_on": position.job.runs_on or None,
    }


def _slices(count: int) -> str:
    return f"{count} slice" if count == 1 else f"{count} slices"
