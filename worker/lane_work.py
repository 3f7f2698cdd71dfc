"""The running work of a lane job: claims slices, runs them, and gives back unfinished ones."""

import asyncio
import time
from collections.abc import Callable, Collection, Coroutine
from typing import Any

import structlog

from shared import crash
from shared.catalog import Lane
from shared.errors import TransientError
from shared.slices import Claim
from shared.state import State
from shared.storage import Storage
from shared.tracing import spans
from worker import traces
from worker.lane_engines import LaneEngines
from worker.lane_load import LaneLoad, Room
from worker.outcomes import Outcome, SliceResult
from worker.settings import WorkerSettings
from worker.slice_io import fetch, settle
from worker.slice_runner import answered_body
from worker.strikes import TOGETHER

log = structlog.get_logger()

#: What failed is not tried again sooner than after this.
_PAUSE_SECONDS = 1.0
#: While one wave works, the next one starts, so that the engine never idles.
_MAX_WAVES = 2
#: Among them are waves that are almost done.
_MAX_EXECUTIONS = 4
_MAX_SLICES = 100
#: The same of a wave, where rows are short: it shall take longer than the next one needs to start.
_MAX_WAVE_SLICES = 400
#: Of the rows of a wave that starts while there are others to run: it has to be worth its start.
_KEPT_PART = 0.5
#: Batches that a line of the log names.
_MAX_SHOWN_BATCHES = 50


class LaneWork:
    """Slices run in one of three ways: directly, in waves, or as suspects with nothing else."""

    def __init__(
        self,
        state: State,
        storage: Storage,
        settings: WorkerSettings,
        engines: LaneEngines,
        load: LaneLoad,
        *,
        lane: Lane,
        job: str,
        small_batch_rows: int,
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        """A batch with up to `small_batch_rows` rows in all is small.

        `on_end` is called when something that ran has ended, so that there is room.
        """
        self._state = state
        self._storage = storage
        self._settings = settings
        self._engines = engines
        self._load = load
        self._lane = lane
        self._job = job
        self._small_batch_rows = small_batch_rows
        self._on_end = on_end
        #: How many suspects wait, as last counted.
        self.suspects = 0
        #: How many waves were started.
        self.waves_started = 0
        self._waves: set[asyncio.Task[None]] = set()
        self._directs: set[asyncio.Task[None]] = set()
        self._trials: set[asyncio.Task[None]] = set()
        #: Batches with a slice that seemed to be answered and was not: they wait for an engine.
        self._unanswered = set[str]()
        #: Until then other slices have their turn.
        self._no_trial_before = 0.0
        #: Whoever claims for small batches: two would both take the same room.
        self._claiming_small = asyncio.Lock()

    async def start(self, engine: Lane, rate: float) -> int:
        """Start what may run now; returns how many slices.

        Suspects run alone, and at most half of the time if other slices wait. Raises
        SupersededError when the lane has another job.
        """
        if self._trials:
            return 0
        if not self.suspects or time.monotonic() < self._no_trial_before:
            # Otherwise a batch would have no results from its beginning on until the wave has
            # started: what lies behind its slices runs directly meanwhile.
            await self._put_back_waiting(leaving=_KEPT_PART)
            started = await self._start_direct(engine)
            started += await self._start_small(engine)
            started += await self._start_turns(engine)
            started += await self._start_wave(engine, rate)
            if started or (started := await self._put_back_waiting()):
                return started
        if not self.suspects or self._load.claims or self._waves or self._directs:
            return 0
        if self._claiming_small.locked():
            # What it claims is not counted yet.
            return 0
        return await self._start_trial(engine)

    async def start_small(self, engine: Lane) -> int:
        """Start slices of small batches while `start` goes on; returns how many.

        Raises SupersededError when the lane has another job.
        """
        if self._trials or self.suspects:
            return 0
        return await self._start_small(engine)

    async def start_answered(self) -> int | None:
        """Start slices whose rows were all answered before, which need no engine.

        Returns how many; None if the next ones wait for those that are on their way. Raises
        SupersededError when the lane has another job.
        """
        claims = await self._state.claims.take_answered(
            self._lane.name,
            self._job,
            lease_seconds=self._settings.claim_seconds,
            slices=_MAX_SLICES,
            rows=self._load.free_answered_rows(),
            passing_over=self._unanswered,
        )
        if claims is None:
            return None if self._load.has_answered else 0
        self._hold(claims)
        for claim in claims:
            self._load.begin_direct(claim, Room.ANSWERED)
            self._keep(self._directs, self._settle_answered(claim))
        return len(claims)

    async def require_job(self) -> None:
        """Raise SupersededError when the lane has another job."""
        await self._claim(rows=0)

    async def renew_claims(self) -> None:
        """Extend the claims, and forget those that are settled or lost."""
        gone = await self._state.claims.renew(
            self._load.claims, lease_seconds=self._settings.claim_seconds
        )
        for claim in gone:
            self._load.drop(claim)

    async def _start_direct(self, engine: Lane) -> int:
        """Start slices at once, whatever else runs."""
        rows = self._load.free_direct_rows()
        if rows <= 0:
            return 0
        return self._run_directly(await self._claim(rows=rows, begun=True), engine, Room.ANY)

    async def _start_small(self, engine: Lane) -> int:
        """Start slices of small batches for which others have left no room."""
        async with self._claiming_small:
            rows = self._load.free_small_rows()
            if rows <= 0:
                return 0
            claims = await self._claim(rows=rows, begun=True, max_batch_rows=self._small_batch_rows)
            return self._run_directly(claims, engine, Room.SMALL)

    async def _start_turns(self, engine: Lane) -> int:
        """Start slices of batches of which little runs, so that none waits for a wave to end.

        One after another: each may be the one with which its batch has its turn.
        """
        started = 0
        while (rows := self._load.free_turn_rows()) > 0:
            passing_over = self._load.have_turns()
            claims = await self._claim(rows=rows, slices=1, begun=True, passing_over=passing_over)
            if not claims:
                break
            started += self._run_directly(claims, engine, Room.TURN)
        return started

    def _run_directly(self, claims: list[Claim], engine: Lane, room: Room) -> int:
        for claim in claims:
            self._load.begin_direct(claim, room)
            self._keep(self._directs, self._run_direct(claim, engine))
        return len(claims)

    async def _start_wave(self, engine: Lane, rate: float) -> int:
        """Start the next wave before the running one drains."""
        if self._load.lasting_waves() >= _MAX_WAVES or len(self._waves) >= _MAX_EXECUTIONS:
            return 0
        # Two that start together take twice as long, and by then the rate is better known.
        if self._load.has_starting_wave():
            return 0
        # Fewer rows are done sooner without one, and a small batch, too.
        claims = await self._claim_wave(rate)
        if not claims:
            return 0
        self.waves_started += 1
        log.info(
            "wave.started",
            lane=self._lane.name,
            wave=self.waves_started,
            slices=len(claims),
            rows=sum(claim.slice.rows for claim in claims),
            batches=_batches(claims),
            tenants=len({claim.tenant for claim in claims}),
        )
        self._load.begin_wave(claims)
        self._keep(self._waves, self._run_wave(claims, engine, self.waves_started))
        return len(claims)

    async def _put_back_waiting(self, *, leaving: float = 0.0) -> int:
        """Let slices run directly that wait for a wave to start; returns how many.

        A start takes seconds, in which nothing else may be left for the engine. A wave keeps this
        part of its rows.
        """
        if not (waiting := self._load.waiting_in_waves(leaving=leaving)):
            return 0
        self._load.begin_put_back(waiting)
        returned = await self._state.claims.put_back(waiting)
        self._load.end_put_back(waiting, returned)
        return len(returned)

    async def _claim_wave(self, rate: float) -> list[Claim]:
        """What the next wave runs; one call claims no more than a part of many short slices."""
        rows, min_rows = self._load.wave_rows(rate), self._load.least_wave_rows(rate)
        claims: list[Claim] = []
        while len(claims) < _MAX_WAVE_SLICES and rows > 0:
            try:
                more = await self._claim(
                    rows=rows, min_rows=min_rows, min_batch_rows=self._small_batch_rows + 1
                )
            except TransientError:
                if claims:
                    # They are held, so they run.
                    break
                raise
            claims += more
            if len(more) < _MAX_SLICES:
                break
            rows, min_rows = rows - sum(claim.slice.rows for claim in more), 0
        return claims

    async def _start_trial(self, engine: Lane) -> int:
        """Start the suspects that come next."""
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
            self.suspects = 0
        return len(claims)

    async def _claim(
        self,
        *,
        rows: int,
        slices: int = _MAX_SLICES,
        min_rows: int = 0,
        begun: bool = False,
        min_batch_rows: int = 0,
        max_batch_rows: int | None = None,
        passing_over: Collection[str] = (),
    ) -> list[Claim]:
        claims = await self._state.claims.take(
            self._lane.name,
            self._job,
            lease_seconds=self._settings.claim_seconds,
            slices=slices,
            rows=rows,
            min_rows=min_rows,
            begun=begun,
            min_batch_rows=min_batch_rows,
            max_batch_rows=max_batch_rows,
            passing_over=passing_over,
        )
        self._hold(claims)
        return claims

    def _hold(self, claims: list[Claim]) -> None:
        self._load.hold(claims)
        if claims:
            crash.point("lane_job.claimed")

    async def _run_direct(self, claim: Claim, engine: Lane) -> None:
        at = {"batch_id": claim.batch_id, "index": claim.index}
        with spans.named(claim.traceparent):
            log.debug("slice.started", lane=self._lane.name, **at)
        try:
            given = await fetch(self._storage, claim)
            result = await self._engines.slice_runner(engine).run(claim, given)
            await self._settle(claim, result)
            if result.outcome.is_trouble:
                # Its rows stay counted during the pause, so that a restarting engine gets no calls.
                await asyncio.sleep(_PAUSE_SECONDS)
        except Exception:
            await asyncio.sleep(_PAUSE_SECONDS)
            raise
        finally:
            self._load.end_direct(claim)
            await self._release_held([claim])

    async def _settle_answered(self, claim: Claim) -> None:
        """Settle the slice if all its rows have answers; otherwise it goes back."""
        try:
            given = await fetch(self._storage, claim)
            body = answered_body(claim, given, pool=self._lane.pool)
            if body is None:
                self._unanswered.add(claim.batch_id)
            else:
                await self._settle(claim, SliceResult(Outcome.DONE, body))
        except Exception:
            await asyncio.sleep(_PAUSE_SECONDS)
            raise
        finally:
            self._load.end_direct(claim)
            await self._release_held([claim])

    async def _run_wave(self, claims: list[Claim], engine: Lane, wave: int) -> None:
        try:
            with traces.wave("wave", self._lane.name, claims, number=wave):
                await self._engines.run_wave(claims, engine)
        except Exception:
            await asyncio.sleep(_PAUSE_SECONDS)
            raise
        finally:
            log.info("wave.ended", lane=self._lane.name, wave=wave, batches=_batches(claims))
            self._load.end_wave(claims)
            await self._release_held(claims)

    async def _run_trial(self, claims: list[Claim], engine: Lane) -> None:
        began = time.monotonic()
        try:
            given = await asyncio.gather(*(fetch(self._storage, claim) for claim in claims))
            with traces.wave("run suspects", self._lane.name, claims):
                results = await self._engines.suspect_runner(engine).run(claims, given)
            for claim, result in zip(claims, results, strict=True):
                await self._settle(claim, result)
            if any(result.outcome.is_trouble for result in results):
                await asyncio.sleep(_PAUSE_SECONDS)
        except Exception:
            await asyncio.sleep(_PAUSE_SECONDS)
            raise
        finally:
            self._no_trial_before = 2 * time.monotonic() - began
            await self._release_held(claims)

    async def _settle(self, claim: Claim, result: SliceResult) -> None:
        slice_events = self._settings.slice_events
        await settle(self._state, self._storage, claim, result, slice_events=slice_events)

    async def _release_held(self, claims: list[Claim]) -> None:
        """Give back those that are still held; a claim that was settled stays as it is.

        Those that cannot be given back are not held either, so they run out.
        """
        for claim in [claim for claim in claims if self._load.drop(claim)]:
            await self._state.claims.release(claim)
            crash.point("lane_job.released")

    def _keep(self, tasks: set[asyncio.Task[None]], work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        tasks.add(task)

        def ended(task: asyncio.Task[None]) -> None:
            tasks.discard(task)
            self._on_end()
            if not task.cancelled() and (error := task.exception()) is not None:
                # Its claims went back, and the lane goes on with the next ones.
                fault = {"code": type(error).__name__, "reason": repr(error)[:500]}
                log.error("lane_job.work_broke", lane=self._lane.name, **fault)

        task.add_done_callback(ended)


def _batches(claims: Collection[Claim]) -> list[str]:
    """The batches of a wave, for its lines in the log: the first ones of very many."""
    return sorted({claim.batch_id for claim in claims})[:_MAX_SHOWN_BATCHES]
