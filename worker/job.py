"""A lane job: runs the slices of its lane until the lane is idle.

Everything it knows is in Redis. If it is killed at any line, its claims run out and another lane
job goes on.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, nullcontext, suppress
from typing import NoReturn

import structlog

from shared import crash
from shared.catalog import Catalog, Lane
from shared.catalog_file import load_catalog
from shared.errors import TransientError
from shared.interpreter import prepare_to_serve
from shared.ordering.pace import to_text
from shared.state import Bells, State
from shared.state.claims import SupersededError
from shared.storage import Storage
from shared.tracing import spans
from worker.adapter_keeper import AdapterKeeper
from worker.backlog_keeper import BacklogKeeper
from worker.connections import opened
from worker.door_keeper import DoorKeeper
from worker.engine_errors import EngineFailedError
from worker.engine_keeper import EngineKeeper
from worker.engine_pools import EnginePools
from worker.engine_sizes import rows_ahead, rows_at_once, small_rows, spare_seats, turn_rows
from worker.lane_engines import LaneEngines
from worker.lane_load import LaneLoad
from worker.lane_work import LaneWork
from worker.pace_meter import PaceMeter
from worker.replica_watch import ReplicaWatch
from worker.settings import WorkerSettings

log = structlog.get_logger()

_BEAT_SECONDS = 1.0
#: The ready list is looked at this often if no bell rings and nothing ends.
_POLL_SECONDS = 0.5
#: How long one look for a ring lasts.
_LISTEN_SECONDS = 60.0
#: An engine is told no more often than this that rows of small batches are on their way.
_COMING_SECONDS = 0.05
#: What failed is not tried again sooner than after this.
_PAUSE_SECONDS = 1.0


def run_lane_job(
    settings: WorkerSettings,
    lane_name: str,
    job: str,
    *,
    engines_class: type[LaneEngines] = LaneEngines,
) -> NoReturn:
    """Be the lane's job until it ends, and end the process."""
    catalog = load_catalog(settings.catalog)
    lane = catalog.lane_named(lane_name)

    async def work() -> None:
        async with opened(settings) as (state, storage):
            await LaneJob(
                state,
                storage,
                settings,
                catalog=catalog,
                lane=lane,
                job=job,
                engines_class=engines_class,
            ).run()

    prepare_to_serve()
    asyncio.run(work())
    spans.stop()
    # The waves of a superseded job run in threads that nothing can stop.
    os._exit(0)


class LaneJob:
    """The one process that feeds a lane's engine."""

    def __init__(
        self,
        state: State,
        storage: Storage,
        settings: WorkerSettings,
        *,
        catalog: Catalog,
        lane: Lane,
        job: str,
        engines_class: type[LaneEngines] = LaneEngines,
    ) -> None:
        self._state = state
        self._lane = lane
        self._job = job
        self._is_superseded = False
        self._is_ensured = False
        #: Set when there may be something to start.
        self._woken = asyncio.Event()
        #: What takes rows, as last chosen.
        self._engine: Lane | None = None
        model = catalog.model(lane.model)
        self._seats = rows_at_once(model)
        self._linger_seconds = settings.linger(model.idle_seconds)
        self._meter = PaceMeter(seats=self._seats)
        self._rate = 0.0
        self._load = LaneLoad(
            rows_at_once=rows_at_once(model),
            rows_ahead=rows_ahead(model),
            small_rows=small_rows(model),
            turn_rows=turn_rows(model),
            direct_rows=settings.direct_rows,
            wave_seconds=settings.wave_seconds,
        )
        self._pools = EnginePools(catalog, lane)
        #: Whether an engine shall run whatever there is to do.
        self._keeps_engine = model.min_replicas > 0 and not self._pools.are_several
        self._engines = engines_class(
            catalog, lane, state, settings, patience_seconds=self._pools.patience_seconds
        )
        self._gives_vectors = model.runner == "pooling"
        self._doors = (
            None
            if model.live is None
            else DoorKeeper(
                state,
                self._engines,
                lanes=self._pools.lanes,
                job=job,
                always=model.min_replicas > 0,
            )
        )
        self._replicas = ReplicaWatch(
            state,
            self._engines,
            lanes=self._pools.lanes,
            is_busy=self._is_busy,
            slices_held=lambda: self._load.held_in_all,
        )
        self._keeper = (
            None
            if self._pools.are_several
            else EngineKeeper(
                state, self._engines, lane=lane, job=job, is_needed=self._is_engine_needed
            )
        )
        self._backlog = (
            None
            if model.max_replicas == 1
            else BacklogKeeper(
                state,
                self._engines,
                lanes=self._pools.lanes,
                seats=model.seats,
                backlog_seconds=model.backlog_seconds,
                rows=self._rows_claimed,
            )
        )
        self._adapters = (
            None
            if model.tenant_lora is None
            else AdapterKeeper(
                storage, self._engines, lanes=self._pools.lanes, is_busy=self._is_busy
            )
        )
        self._work = LaneWork(
            state,
            storage,
            settings,
            self._engines,
            self._load,
            lane=lane,
            job=job,
            small_batch_rows=spare_seats(model),
            on_end=self._woken.set,
        )

    async def run(self) -> None:
        """Work until the lane has been idle for `linger_seconds`, or has another job."""
        log.info("lane_job.started", lane=self._lane.name, job=self._job)
        tasks = [asyncio.create_task(self._beats()), asyncio.create_task(self._replicas.run())]
        if self._doors is not None:
            tasks.append(asyncio.create_task(self._doors.run()))
        if self._keeper is not None:
            tasks.append(asyncio.create_task(self._keeper.run()))
        if self._backlog is not None:
            tasks.append(asyncio.create_task(self._backlog.run()))
        if self._adapters is not None:
            tasks.append(asyncio.create_task(self._adapters.run()))
        try:
            if self._keeps_engine:
                await self._ensure()
            await self._work_until_idle()
        except SupersededError as error:
            log.warning("lane_job.superseded", lane=self._lane.name, reason=str(error))
        except EngineFailedError as error:
            await self._state.lanes.fail(self._lane.name, str(error), job=self._job)
        finally:
            for task in tasks:
                task.cancel()

    @property
    def _is_wanted(self) -> bool:
        """Whether an engine is wanted for live calls."""
        return self._doors is not None and self._doors.is_wanted

    def _rows_claimed(self) -> int:
        return sum(claim.slice.rows for claim in self._load.claims)

    def _is_busy(self) -> bool:
        return bool(self._load.claims) or self._is_wanted

    def _is_engine_needed(self) -> bool:
        return self._is_ensured and (self._keeps_engine or self._is_busy())

    async def _work_until_idle(self) -> None:
        idle_since = time.monotonic()
        coming = (
            self._listening("coming", self._expect_small) if self._gives_vectors else nullcontext()
        )
        async with self._listening("lane", self._wake), coming:
            while not self._is_superseded:
                try:
                    started = await self._start_work()
                    if started or self._load.claims or self._is_wanted:
                        idle_since = time.monotonic()
                    elif time.monotonic() - idle_since > self._linger_seconds:
                        if await self._close():
                            return
                        idle_since = time.monotonic()
                    if not started:
                        await self._wait()
                except TransientError as error:
                    log.warning("lane_job.waits", lane=self._lane.name, reason=str(error))
                    await asyncio.sleep(_PAUSE_SECONDS)
        raise SupersededError(f"Lane {self._lane.name} is no longer served by {self._job}.")

    async def _wait(self) -> None:
        """Until there may be something to start: a bell rings, or what ran has left its room."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_POLL_SECONDS):
                await self._woken.wait()
        self._woken.clear()

    @asynccontextmanager
    async def _listening(
        self, bell: str, answer: Callable[[], Awaitable[None]]
    ) -> AsyncIterator[None]:
        """Meanwhile, answer each ring of this bell of the lane."""
        async with self._state.bells(f"{bell}:{self._lane.name}") as bells:
            listening = asyncio.create_task(self._listen(bells, answer))
            try:
                yield
            finally:
                listening.cancel()
                await asyncio.wait([listening])

    async def _listen(self, bells: Bells, answer: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                if await bells.wait(_LISTEN_SECONDS):
                    await answer()
            except TransientError:
                await asyncio.sleep(_PAUSE_SECONDS)

    async def _expect_small(self) -> None:
        """Tell the engine of a small batch that is being planned, if it has other rows."""
        if self._engine is not None and self._load.claims:
            await self._engines.expect_small(self._engine)
            await asyncio.sleep(_COMING_SECONDS)

    async def _wake(self) -> None:
        """Have the next round now, and start small batches beside the one that goes on.

        It may have thousands of rows to claim.
        """
        self._woken.set()
        if self._engine is not None:
            # Whether the lane has another job, the next round hears too.
            with suppress(SupersededError):
                await self._work.start_small(self._engine)

    async def _start_work(self) -> int:
        """Start what may run now; returns how many slices.

        Raises SupersededError when the lane has another job, which a bell says, too.
        """
        if started := await self._work.start_answered():
            return started
        if started is None:
            return 0
        engine = self._engine = await self._choose_engine()
        if engine is None:
            # Nothing is claimed, and claiming is how a job learns that it was replaced.
            await self._work.require_job()
            return 0
        return await self._work.start(engine, self._rate)

    async def _choose_engine(self) -> Lane | None:
        """The engine that takes the next rows; None while there is none, or nothing to run."""
        has_work = (
            self._is_ensured
            or self._work.suspects
            or self._is_wanted
            or await self._state.lanes.ready_count(self._lane.name)
        )
        if has_work:
            if not self._pools.are_several:
                await self._ensure()
            return await self._pools.choose()
        if not self._load.claims:
            self._pools.reset()
        return None

    async def _ensure(self) -> None:
        """Deploy the engine. Raises EngineFailedError."""
        if not self._is_ensured:
            await self._engines.ensure(self._lane)
            self._is_ensured = True

    async def _close(self) -> bool:
        """End the job unless the lane has work again."""
        is_closed = await self._state.lanes.close_job(self._lane.name, self._job)
        if is_closed:
            crash.point("lane_job.closed")
            log.info("lane_job.idle", lane=self._lane.name, job=self._job)
        return is_closed

    async def _beats(self) -> None:
        while True:
            await asyncio.sleep(_BEAT_SECONDS)
            try:
                await self._beat()
            except TransientError as error:
                # The claims last longer than Redis is usually away.
                log.warning("lane_job.no_beat", lane=self._lane.name, reason=str(error))

    async def _beat(self) -> None:
        await self._work.renew_claims()
        name = self._lane.name
        record, done, engine = await asyncio.gather(
            self._state.lanes.job(name), self._state.lanes.done(name), self._state.engines.one(name)
        )
        runs = engine is not None and engine.state == "running"
        self._meter.measure(
            done,
            time.monotonic(),
            rows_claimed=self._rows_claimed(),
            is_running=runs or record.is_warm or record.first_result_at > 0,
            known=record.pace,
        )
        whole = self._meter.pace.whole
        self._rate = whole.rows / whole.seconds if whole else record.rate
        token_rate = whole.predicted / whole.seconds if whole else record.token_rate
        self._work.suspects = await self._state.lanes.suspects_count(self._lane.name)
        is_ours = await self._state.lanes.beat(
            self._lane.name,
            self._job,
            rows_wanted=2 * self._load.wave_rows(self._rate),
            executions=self._work.waves_started,
            rate=self._rate,
            token_rate=token_rate,
            pace=to_text(self._meter.pace),
            seats=self._seats,
            **self._pools.report(),
        )
        # For a job that has missed the bell.
        self._is_superseded = not is_ours
