"""What a lane waits for before it runs rows, in words. Pure."""

from typing import Literal, NamedTuple

from pydantic import BaseModel, ConfigDict

from shared.engines import NO_ROOM, EngineRecord

#: A lane job reports every second.
_SILENT_SECONDS = 15
#: What was seen of an engine longer ago says nothing about now.
_STALE_SECONDS = 60

Code = Literal[
    "planning",
    "requests",
    "paused",
    "lane_starting",
    "lane_silent",
    "no_room",
    "engine_starting",
    "engine_failed",
    "engine_deaths",
    "others",
    "finalizing",
    "cancelling",
]


class Waiting(BaseModel):
    """What must happen before more runs."""

    model_config = ConfigDict(frozen=True)

    code: Code
    message: str


class LaneJob(NamedTuple):
    """A lane's job; times are Unix seconds, 0 if it has not happened."""

    id: str
    opened_at: float
    beat_at: float
    rate: float
    #: The pool whose engine runs the rows now, the full pools, and when the next pool is tried.
    runs_on: str
    full_pools: tuple[str, ...]
    spills_at: float


class Start(NamedTuple):
    """How far a lane's start is, and what earlier ones took, in seconds; 0 if nobody knows."""

    #: When the lane's job was opened, in Unix seconds; 0 while there is none.
    opened_at: float
    has_results: bool
    #: Whether the engine ran when the job was opened.
    is_warm: bool
    warm: float
    cold: float


def waits_for_job(job: LaneJob, failure: str | None, *, now: float) -> Waiting | None:
    """Why no lane job takes rows; None if one does. `failure` is why the engine cannot start."""
    if failure is not None:
        return Waiting(code="engine_failed", message=f"The lane's engine cannot start: {failure}")
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
            message=f"The lane job has not reported for {now - job.beat_at:.0f} seconds. It will "
            "be replaced if it stays silent.",
        )
    return None


def starts_in(start: Start, engine: EngineRecord | None, *, now: float) -> float:
    """Seconds until a lane that has work gives results, as its earlier starts took; 0 if it runs.

    A start that takes longer than those before is expected to end at once.
    """
    if start.has_results:
        return 0.0
    runs = start.is_warm or (engine is not None and engine.state == "running")
    seconds = (start.warm or start.cold) if runs else (start.cold or start.warm)
    return max(0.0, seconds - (now - start.opened_at if start.opened_at else 0.0))


def waits_for_engine(
    job: LaneJob, engine: EngineRecord | None, *, had_engine_trouble: bool, now: float
) -> Waiting:
    """Why the lane's engine takes no rows, as far as it is known."""
    if job.full_pools and not job.runs_on:
        return Waiting(code="no_room", message=_no_room(job, now))
    if engine is not None and _is_fresh(engine, now) and _is_meant(engine, job):
        if engine.reason == NO_ROOM:
            return Waiting(code="no_room", message=f"The engine waits: {engine.reason}")
        if engine.reason:
            return Waiting(
                code="engine_failed",
                message=f"The lane's engine could not start, and is tried again: {engine.reason}",
            )
    if had_engine_trouble:
        return Waiting(
            code="engine_failed",
            message="The lane's engine died or could not be reached, and is being restarted.",
        )
    if job.runs_on:
        return Waiting(code="lane_starting", message="The lane is about to take the next slices.")
    return Waiting(code="engine_starting", message="The lane's engine is starting.")


def holds_claims_back(job: LaneJob, engine: EngineRecord | None, *, now: float) -> bool:
    """Whether what the lane job has claimed waits for an engine that is known not to run."""
    if job.runs_on or engine is None or not _is_fresh(engine, now):
        return False
    return engine.state in ("waiting", "starting", "failed")


def _is_fresh(engine: EngineRecord, now: float) -> bool:
    return now - engine.seen_at <= _STALE_SECONDS


def _is_meant(engine: EngineRecord, job: LaneJob) -> bool:
    """Whether rows wait for this engine: those of a lane that has spilled wait for another one."""
    return job.runs_on in ("", engine.lane.rpartition("@")[2])


def _no_room(job: LaneJob, now: float) -> str:
    pools = job.full_pools
    full = f"Pool {pools[0]} has" if len(pools) == 1 else f"Pools {', '.join(pools)} have"
    if not job.spills_at:
        return f"{full} no room for the engine."
    seconds = max(0.0, job.spills_at - now)
    return f"{full} no room for the engine; the next pool is asked in {seconds:.0f} seconds."
