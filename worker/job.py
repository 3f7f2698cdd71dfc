"""A lane job: claims the slices of its lane and runs them as overlapping waves, until it is idle.

Everything it knows is in Redis; killed at any line, its claims run out and another job goes on.
"""

import asyncio
import os
import time
from collections.abc import Coroutine
from typing import Any, NoReturn

import structlog

from shared import crash
from shared.catalog import Catalog, Lane, load_catalog
from shared.errors import TransientError
from shared.slices import Claim
from shared.state import State
from shared.state.claims import SupersededError
from shared.storage import Storage
from worker.connections import opened
from worker.engine_client import DEFAULT_MAX_NUM_SEQS, EngineClient, ensure_engine
from worker.engine_errors import EngineFailedError
from worker.engine_pools import Pools
from worker.settings import WorkerSettings
from worker.slice_runner import BatchWatch, Outcome, SliceResult, SliceRunner, fetch, settle
from worker.strikes import TOGETHER
from worker.suspect_runner import SuspectRunner
from worker.wave import run_wave

log = structlog.get_logger()

_BEAT_SECONDS = 1.0
#: With no bell heard, the ready list is looked at this often.
_POLL_SECONDS = 0.5
#: What failed is not tried again faster than this.
_PAUSE_SECONDS = 1.0
#: Waves at once: one that works, and one that starts meanwhile, so that the engine never idles.
_WAVES = 2
_MOST_SLICES = 100


def run_lane_job(settings: WorkerSettings, lane_name: str, job: str) -> NoReturn:
    """Be the lane's job until it ends, and end the process."""
    catalog = load_catalog(settings.catalog)
    lane = catalog.lane_named(lane_name)

    async def work() -> None:
        async with opened(settings) as (state, storage):
            await LaneJob(state, storage, settings, lane=lane, job=job, catalog=catalog).run()

    asyncio.run(work())
    # Waves of a job that was superseded run in threads that nothing can stop.
    os._exit(0)


class LaneJob:
    """The one process that feeds a lane's engine."""

    def __init__(
        self,
        state: State,
        storage: Storage,
        settings: WorkerSettings,
        *,
        lane: Lane,
        job: str,
        catalog: Catalog,
    ) -> None:
        self._state = state
        self._storage = storage
        self._settings = settings
        self._lane = lane
        self._job = job
        self._catalog = catalog
        model = catalog.model(lane.model)
        self._rows_at_once = model.max_replicas * int(
            model.engine.get("max_num_seqs", DEFAULT_MAX_NUM_SEQS)
        )
        self._claims: dict[tuple[str, int], Claim] = {}
        self._waves: set[asyncio.Task[None]] = set()
        #: The slices of each wave under way.
        self._wave_claims: list[list[Claim]] = []
        self._directs: set[asyncio.Task[None]] = set()
        self._direct_rows = 0
        self._executions = 0
        self._rate = 0.0
        self._measured: tuple[float, int] | None = None
        self._pools = Pools(catalog, lane)
        self._watch = BatchWatch(state)
        self._runners: dict[Lane, SliceRunner] = {}
        #: Of the lane, as of the last beat.
        self._suspects = 0
        self._suspect_runners: dict[Lane, SuspectRunner] = {}
        self._trials: set[asyncio.Task[None]] = set()
        #: Until then others have their turn.
        self._no_trial_before = 0.0
        self._failure: BaseException | None = None
        self._is_superseded = False

    async def run(self) -> None:
        """Work until the lane has been idle for `linger_seconds`, or another job took it over."""
        log.info("lane_job.started", lane=self._lane.name, job=self._job)
        beats = asyncio.create_task(self._beats())
        try:
            if not self._pools.are_several:
                await asyncio.to_thread(ensure_engine, self._catalog, self._lane)
            await self._work()
        except SupersededError as error:
            log.warning("lane_job.superseded", lane=self._lane.name, reason=str(error))
        except EngineFailedError as error:
            await self._state.lanes.fail(self._lane.name, str(error), job=self._job)
        finally:
            beats.cancel()

    async def _work(self) -> None:
        idle_since = time.monotonic()
        async with self._state.bells(f"lane:{self._lane.name}") as bells:
            while not self._is_superseded:
                try:
                    started = 0
                    if (engine := await self._engine()) is not None:
                        started = await self._start(engine)
                    if started or self._claims:
                        idle_since = time.monotonic()
                    elif time.monotonic() - idle_since > self._settings.linger_seconds:
                        if await self._state.lanes.close_job(self._lane.name, self._job):
                            crash.point("lane_job.closed")
                            log.info("lane_job.idle", lane=self._lane.name, job=self._job)
                            return
                        idle_since = time.monotonic()
                    if not started:
                        await bells.wait(_POLL_SECONDS)
                except TransientError as error:
                    log.warning("lane_job.waits", lane=self._lane.name, reason=str(error))
                    await asyncio.sleep(_PAUSE_SECONDS)
        raise SupersededError(f"Lane {self._lane.name} has another job than {self._job}.")

    async def _engine(self) -> Lane | None:
        """Whose engine takes the next rows; None while there is none, or nothing to run."""
        if (
            not self._pools.are_several
            or self._suspects
            or await self._state.lanes.ready_count(self._lane.name)
        ):
            engine = await self._pools.choose()
        else:
            engine = None
            if not self._claims:
                self._pools.rest()
        if engine is None:
            # Who takes nothing must also learn that another job has its place.
            await self._claim(rows=0)
        return engine

    async def _start(self, engine: Lane) -> int:
        """Start what may run now; returns how many slices that are.

        Suspects run while nothing else does, and at most half of the time if others wait.
        """
        if self._trials:
            return 0
        if not self._suspects or time.monotonic() < self._no_trial_before:
            started = await self._start_direct(engine) + await self._start_wave(engine)
            if started:
                return started
        if not self._suspects or self._claims or self._waves or self._directs:
            return 0
        return await self._start_trial(engine)

    async def _start_trial(self, engine: Lane) -> int:
        claims = await self._state.claims.take_suspects(
            self._lane.name,
            self._job,
            lease_seconds=self._settings.claim_seconds,
            rows=TOGETHER,
        )
        self._hold(claims)
        if claims:
            self._keep(self._trials, self._run_trial(claims, engine))
        else:
            self._suspects = 0
        return len(claims)

    async def _start_direct(self, engine: Lane) -> int:
        """Run slices at once, whatever else is under way; returns how many began.

        Small ones always find room here; large ones while no wave gives the engine work.
        """
        unused = 2 * self._rows_in_engine() - sum(map(self._rows_flowing, self._wave_claims))
        room = max(self._settings.direct_rows, unused) - self._direct_rows
        if room <= 0:
            return 0
        claims = await self._claim(rows=room)
        for claim in claims:
            self._direct_rows += claim.slice.rows
            self._keep(self._directs, self._run_direct(claim, engine))
        return len(claims)

    async def _start_wave(self, engine: Lane) -> int:
        """Start the next wave before the running one drains; returns how many slices it has."""
        if len(self._waves) >= _WAVES:
            return 0
        # Fewer rows are done sooner than an execution has started.
        claims = await self._claim(rows=self._wave_rows(), least_rows=self._rows_at_once)
        if not claims:
            return 0
        self._executions += 1
        batches = {claim.batch_id for claim in claims}
        log.info(
            "wave.started",
            lane=self._lane.name,
            wave=self._executions,
            slices=len(claims),
            rows=sum(claim.slice.rows for claim in claims),
            batches=len(batches),
            tenants=len({claim.tenant for claim in claims}),
        )
        app_name = self._catalog.app_name(engine)
        self._keep(self._waves, self._run_wave(claims, app_name, self._executions))
        return len(claims)

    async def _claim(self, *, rows: int, least_rows: int = 0) -> list[Claim]:
        claims = await self._state.claims.take(
            self._lane.name,
            self._job,
            lease_seconds=self._settings.claim_seconds,
            slices=_MOST_SLICES,
            rows=rows,
            min_rows=least_rows,
        )
        self._hold(claims)
        return claims

    def _hold(self, claims: list[Claim]) -> None:
        self._claims.update({(claim.batch_id, claim.index): claim for claim in claims})
        if claims:
            crash.point("lane_job.claimed")

    async def _run_trial(self, claims: list[Claim], engine: Lane) -> None:
        began = time.monotonic()
        try:
            bodies = await asyncio.gather(*(fetch(self._storage, claim) for claim in claims))
            results = await self._suspect_runner(engine).run(claims, bodies)
            for claim, result in zip(claims, results, strict=True):
                await self._settle(claim, result)
            if any(result.outcome is not Outcome.DONE for result in results):
                await asyncio.sleep(_PAUSE_SECONDS)
        except Exception:
            await asyncio.sleep(_PAUSE_SECONDS)
            raise
        finally:
            self._no_trial_before = 2 * time.monotonic() - began
            await self._let_go(claims)

    async def _run_direct(self, claim: Claim, engine: Lane) -> None:
        try:
            body = await fetch(self._storage, claim)
            result = await self._runner(engine).run(claim, body)
            await self._settle(claim, result)
            if result.outcome is not Outcome.DONE:
                # Its room stays taken meanwhile: an engine that restarts is not asked in a circle.
                await asyncio.sleep(_PAUSE_SECONDS)
        except Exception:
            await asyncio.sleep(_PAUSE_SECONDS)
            raise
        finally:
            self._direct_rows -= claim.slice.rows
            await self._let_go([claim])

    async def _settle(self, claim: Claim, result: SliceResult) -> None:
        slice_events = self._settings.slice_events
        await settle(self._state, self._storage, claim, result, slice_events=slice_events)

    def _runner(self, engine: Lane) -> SliceRunner:
        if engine not in self._runners:
            self._runners[engine] = SliceRunner(
                self._client(engine),
                self._watch,
                rows_in_engine=self._rows_in_engine(),
                rows_per_engine_call=self._settings.rows_per_engine_call,
            )
        return self._runners[engine]

    def _suspect_runner(self, engine: Lane) -> SuspectRunner:
        if engine not in self._suspect_runners:
            self._suspect_runners[engine] = SuspectRunner(
                self._client(engine),
                self._watch,
                rows_in_engine=self._rows_in_engine(),
                rows_per_engine_call=self._settings.rows_per_engine_call,
                most_deaths=self._settings.engine_deaths_per_batch,
                most_in_a_row=self._settings.lane_engine_deaths,
            )
        return self._suspect_runners[engine]

    def _client(self, engine: Lane) -> EngineClient:
        calls = self._settings.rows_per_engine_call
        return EngineClient(
            self._catalog.app_name(engine),
            rows_per_engine_call=calls,
            patience_seconds=self._pools.patience_seconds,
        )

    async def _run_wave(self, claims: list[Claim], app_name: str, wave: int) -> None:
        self._wave_claims.append(claims)
        try:
            await asyncio.to_thread(
                run_wave,
                claims,
                app_name=app_name,
                rows_in_engine=self._rows_in_engine(),
                patience_seconds=self._pools.patience_seconds,
            )
        except Exception:
            await asyncio.sleep(_PAUSE_SECONDS)
            raise
        finally:
            log.info("wave.ended", lane=self._lane.name, wave=wave)
            self._wave_claims.remove(claims)
            await self._let_go(claims)

    def _rows_flowing(self, claims: list[Claim]) -> int:
        """The rows that a wave has left, once it has settled its first slice; 0 while it starts."""
        left = [claim for claim in claims if (claim.batch_id, claim.index) in self._claims]
        return sum(claim.slice.rows for claim in left) if len(left) < len(claims) else 0

    async def _let_go(self, claims: list[Claim]) -> None:
        """Forget claims; those that are still ours were not settled, and go back."""
        for claim in claims:
            if self._claims.pop((claim.batch_id, claim.index), None) is not None:
                await self._state.claims.release(claim)
                crash.point("lane_job.released")

    def _keep(self, tasks: set[asyncio.Task[None]], work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        tasks.add(task)

        def ended(task: asyncio.Task[None]) -> None:
            tasks.discard(task)
            if not task.cancelled() and (error := task.exception()) is not None:
                # Its claims went back; the lane goes on with the next.
                log.error(
                    "lane_job.work_broke",
                    lane=self._lane.name,
                    reason=repr(error)[:500],
                )

        task.add_done_callback(ended)

    async def _beats(self) -> None:
        while True:
            await asyncio.sleep(_BEAT_SECONDS)
            try:
                await self._beat()
            except TransientError as error:
                # The claims last longer than a brief loss of Redis.
                log.warning("lane_job.no_beat", lane=self._lane.name, reason=str(error))

    async def _beat(self) -> None:
        gone = await self._state.claims.renew(
            list(self._claims.values()), lease_seconds=self._settings.claim_seconds
        )
        for claim in gone:
            self._claims.pop((claim.batch_id, claim.index), None)
        await self._measure()
        self._suspects = await self._state.lanes.suspects_count(self._lane.name)
        is_ours = await self._state.lanes.beat(
            self._lane.name,
            self._job,
            rows_wanted=2 * self._wave_rows(),
            executions=self._executions,
            rate=self._rate,
            **self._pools.told(),
        )
        # Who has no room claims nothing, and hears of it nowhere else.
        self._is_superseded = not is_ours

    async def _measure(self) -> None:
        """The lane's rate in rows a second, over about the last five seconds of work."""
        job = await self._state.lanes.job(self._lane.name)
        now = time.monotonic()
        if self._rate == 0:
            # What the job before this one has learnt.
            self._rate = job.rate
        if self._measured is not None and self._claims:
            then, rows = self._measured
            self._rate += 0.2 * ((job.rows - rows) / (now - then) - self._rate)
        self._measured = (now, job.rows)

    def _wave_rows(self) -> int:
        """So many rows keep the engine busy until the wave after this one has started."""
        return int(max(4 * self._rows_at_once, self._rate * self._settings.wave_seconds))

    def _rows_in_engine(self) -> int:
        """A little more than runs at once: a queue keeps engines full, a long one delays."""
        return self._rows_at_once + self._rows_at_once // 4
