"""What operators see of the fleet at one moment: its lanes, engines and tenants.

The commands, the page and the admin calls of the gateway show the same. It has names, numbers and
reasons, and never contents.
"""

import asyncio
from collections.abc import Mapping
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from shared.catalog import Catalog
from shared.engine_starts import Start, whole_start
from shared.engines import EngineRecord, EngineState, ReplicaState
from shared.errors import NotFoundError
from shared.lane_waits import Waiting, waits_for_engine, waits_for_job
from shared.lifecycle import Status
from shared.state import JobRecord, State
from shared.state.census import FleetCounts, LaneCount
from shared.state.lanes import TenantLoad
from shared.state.tenants import Holding


class _Shape(BaseModel):
    model_config = ConfigDict(frozen=True)


class ReplicaView(_Shape):
    """One process of an engine. Times are Unix seconds."""

    id: str
    state: ReplicaState
    machine: str | None = Field(description="The address of its machine.")
    placed_at: float | None = Field(description="Since when it has its GPUs.")
    ready_at: float | None = Field(description="Since when it runs.")


class EngineView(_Shape):
    """An engine, as Ray knew it at `seen_at`."""

    object: Literal["engine"] = "engine"
    lane: str
    model: str
    pool: str
    state: EngineState | Literal["absent"] = Field(
        description="`absent`: it was never needed. `asleep`: it starts with the next row. "
        "`waiting`: no machine has room for it."
    )
    since: float | None = Field(description="Since when it is in this state, in Unix seconds.")
    seen_at: float | None
    reason: str | None = Field(description="Why it does not run. Null if nothing is wrong.")
    gpus: float = Field(description="GPUs of each replica; 1 where it runs on a processor.")
    replicas: list[ReplicaView]
    starts: int = Field(description="Starts that have ended in a running replica.")
    last_start_seconds: float = Field(description="How long the last of them took.")
    last_start_stages: dict[str, float] = Field(
        description="What it was made of, in seconds that sum up to it: `process`, `imports`, "
        "`configuration`, `core`, `weights`, `compile`, `graphs`, `profile`, `fronts`, `server`, "
        "`other`. Empty until the replica has told it."
    )
    first_row_seconds: float | None = Field(
        description="How long the first row after it took. Null until there was one."
    )
    restarts: int = Field(
        description="How often the replica that started last has put another core in the place of "
        "one that died."
    )
    last_restart_stages: dict[str, float] = Field(
        description="What the last of them was made of, in seconds; their sum is all of it."
    )


class LaneTenant(_Shape):
    """What a tenant has on a lane."""

    tenant: str
    batches: int
    rows_left: int


class LaneView(_Shape):
    """A lane: one model on one pool. Times are Unix seconds."""

    object: Literal["lane"] = "lane"
    name: str
    model: str
    pool: str
    batches: int = Field(description="Running batches that are not paused.")
    rows_left: int = Field(description="Their rows that have no result yet.")
    ready_slices: int
    running_slices: int
    suspects: int = Field(description="Slices that wait to run alone, because an engine died.")
    rows_per_second: float
    tokens_per_second: float
    job: str | None = Field(description="The lane job's id in Ray. Null while none runs.")
    job_opened_at: float | None
    job_beat_at: float | None = Field(description="The lane job's last sign of life.")
    runs_on: str | None = Field(description="The pool whose engine runs the rows, if it spills.")
    full_pools: list[str] = Field(description="Pools that have no room for an engine.")
    waits_for: Waiting | None = Field(
        description="What must happen before rows run. Null while they do, or there are none."
    )
    tenants: list[LaneTenant] = Field(description="Who has work here; the most rows first.")


class TenantView(_Shape):
    """A tenant, and what it has in the fleet now."""

    object: Literal["tenant"] = "tenant"
    id: str
    batches: int = Field(description="Running batches that are not paused.")
    rows_left: int
    lanes: list[str]
    enqueued_requests: int
    enqueued_tokens: dict[str, int] = Field(description="By model.")
    stored_bytes: int
    live_calls: int = Field(description="Live calls that it makes now.")


class Waits(_Shape):
    """How many batches are in a status, and for how long the oldest has been."""

    number: int
    oldest_seconds: float


class Fleet(_Shape):
    """The whole fleet at one moment."""

    object: Literal["fleet"] = "fleet"
    at: float = Field(description="Unix seconds.")
    batches: dict[Status, Waits] = Field(description="By status, without those that have ended.")
    ended: dict[Status, int] = Field(description="Batches that have ended, ever, by status.")
    next_window_at: float | None = Field(
        description="When the next completion window of a live batch closes."
    )
    lanes: list[LaneView]
    engines: list[EngineView]
    tenants: list[TenantView]


async def read_fleet(state: State, catalog: Catalog) -> Fleet:
    """The fleet now. Its cost grows with the running batches. Raises TransientError."""
    counted, look = await asyncio.gather(state.census.take(), state.engines.last())
    names = sorted({*counted.lanes, *(lane.name for lane in catalog.lanes())})
    found = await asyncio.gather(*(_read_lane(state, name) for name in names))
    lanes = [
        _lane(catalog, name, counted, parts, look.engines.get(name))
        for name, parts in zip(names, found, strict=True)
    ]
    loads = {name: load for name, (_, _, _, load) in zip(names, found, strict=True)}
    known = await state.tenants.known()
    tenants = sorted({*known, *(tenant for load in loads.values() for tenant in load)})
    held = await state.tenants.held(tenants)
    engines = sorted({*look.engines, *(lane.name for lane in catalog.lanes())})
    return Fleet(
        at=counted.at,
        batches={
            status: Waits(
                number=one.number,
                oldest_seconds=0.0 if one.since is None else max(0.0, counted.at - one.since),
            )
            for status, one in counted.live.items()
        },
        ended=dict(counted.ended),
        next_window_at=counted.next_window_at,
        lanes=lanes,
        engines=[
            _engine(catalog, lane, look.engines.get(lane), counted.starts.get(lane))
            for lane in engines
        ],
        tenants=[_tenant(one, loads, held[one]) for one in tenants],
    )


_LaneParts = tuple[JobRecord, str | None, int, Mapping[str, TenantLoad]]


async def _read_lane(state: State, name: str) -> _LaneParts:
    return await asyncio.gather(
        state.lanes.job(name),
        state.lanes.failure(name),
        state.lanes.suspects_count(name),
        state.lanes.loads(name),
    )


def _lane(
    catalog: Catalog,
    name: str,
    counted: FleetCounts,
    parts: _LaneParts,
    engine: EngineRecord | None,
) -> LaneView:
    job, failure, suspects, loads = parts
    model, pool = _model_and_pool(catalog, name)
    count = counted.lanes.get(name) or LaneCount(0, 0, 0, 0, 0, has_failed=False)
    return LaneView(
        name=name,
        model=model,
        pool=pool,
        batches=count.batches,
        rows_left=sum(load.rows_left for load in loads.values()),
        ready_slices=count.ready_slices - suspects,
        running_slices=count.claimed_slices,
        suspects=suspects,
        rows_per_second=job.rate,
        tokens_per_second=job.token_rate,
        job=job.id or None,
        job_opened_at=job.opened_at if job.id else None,
        job_beat_at=job.beat_at or None if job.id else None,
        runs_on=job.runs_on or None,
        full_pools=list(job.full),
        waits_for=_waits_for(count, job, failure, engine, counted.at),
        tenants=[
            LaneTenant(tenant=tenant, batches=load.batches, rows_left=load.rows_left)
            for tenant, load in sorted(loads.items(), key=lambda one: -one[1].rows_left)
        ],
    )


def _waits_for(
    count: LaneCount, job: JobRecord, failure: str | None, engine: EngineRecord | None, at: float
) -> Waiting | None:
    if not count.batches:
        return None
    lane_job = job.to_lane_job()
    if (waiting := waits_for_job(lane_job, failure, now=at)) is not None:
        return waiting
    runs = engine is not None and engine.state == "running"
    if count.claimed_slices and (runs or job.runs_on):
        return None
    return waits_for_engine(lane_job, engine, had_engine_trouble=False, now=at)


def _engine(
    catalog: Catalog, lane: str, found: EngineRecord | None, start: Start | None
) -> EngineView:
    model, pool = _model_and_pool(catalog, lane)
    if found is None:
        return EngineView(
            lane=lane,
            model=model,
            pool=pool,
            state="absent",
            since=None,
            seen_at=None,
            reason=None,
            gpus=catalog.model(model).gpus if model in catalog.models else 1,
            replicas=[],
            starts=0,
            last_start_seconds=0.0,
            last_start_stages={},
            first_row_seconds=None,
            restarts=0,
            last_restart_stages={},
        )
    seconds = found.last_start_seconds
    stages = dict(whole_start(start, seconds)) if start else {}
    return EngineView(
        lane=lane,
        model=model,
        pool=pool,
        state=found.state,
        since=found.since,
        seen_at=found.seen_at,
        reason=found.reason or None,
        gpus=found.gpus,
        replicas=[
            ReplicaView(
                id=one.id,
                state=one.state,
                machine=one.machine or None,
                placed_at=one.placed_at,
                ready_at=one.ready_at,
            )
            for one in found.replicas
        ],
        starts=found.starts,
        # The replica has measured more than two looks can tell.
        last_start_seconds=sum(stages.values()) if stages else seconds,
        last_start_stages=stages,
        first_row_seconds=start.first_row_seconds if start else None,
        restarts=start.restarts if start else 0,
        last_restart_stages=start.last_restart_stages if start else {},
    )


def _tenant(
    tenant: str, loads: Mapping[str, Mapping[str, TenantLoad]], held: Holding
) -> TenantView:
    own = {lane: load[tenant] for lane, load in loads.items() if tenant in load}
    return TenantView(
        id=tenant,
        batches=sum(load.batches for load in own.values()),
        rows_left=sum(load.rows_left for load in own.values()),
        lanes=sorted(own),
        enqueued_requests=held.requests,
        enqueued_tokens=dict(held.tokens),
        stored_bytes=held.stored_bytes,
        live_calls=held.live_calls,
    )


def _model_and_pool(catalog: Catalog, name: str) -> tuple[str, str]:
    """As the catalog writes them; a lane that it has no more, by the parts of its name."""
    try:
        lane = catalog.lane_named(name)
    except NotFoundError:
        model, _, pool = name.rpartition("@")
        return model, pool
    return lane.model, lane.pool
