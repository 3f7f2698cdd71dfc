"""Keeps one lane job running for each lane with work, and the lane's ready list short and in order.

`ready_list` and `lane_jobs` decide what a lane needs; this module does it.
"""

import asyncio
import secrets
import time
from collections import defaultdict
from collections.abc import Mapping
from contextlib import nullcontext, suppress

import structlog

from dispatcher.cluster import Cluster
from dispatcher.feeding import Feeding
from dispatcher.lane_failure import fail_lane
from dispatcher.lane_jobs import FruitlessJobs, Step, next_step
from dispatcher.lost_inputs import fail_lost_inputs
from dispatcher.planning import Started
from dispatcher.ready_list import LaneNow, exhausted, ready_list, slices_per_batch
from shared import crash
from shared.errors import TransientError
from shared.settings import ENGINE_DEATHS_PER_DAY
from shared.slices import ReadySlice
from shared.state import JobRecord, State
from shared.storage import Storage
from shared.tenants import weights

log = structlog.get_logger()

#: How often Ray is asked about a job.
_LOOK_SECONDS = 2.0
#: How many of the newest batches are looked at by themselves.
_NEWS = 50
#: A small batch is made ready without looking at what else waits, but on each lane no more often
#: than this, in seconds: a round may take as long.
_SMALL_SECONDS = 0.05
#: What Ray runs for a lane; its jobs find everything else in their environment.
ENTRYPOINT = "python -m worker lane {lane} --job {job}"


class LaneKeeper:
    """All that the dispatcher does for lanes. Only the leader runs one."""

    def __init__(
        self,
        state: State,
        storage: Storage,
        cluster: Cluster,
        *,
        ready_rows: int,
        silence_seconds: float,
        attempts: int,
        given_weights: Mapping[str, float] | None = None,
        engine_deaths_per_day: int = ENGINE_DEATHS_PER_DAY,
        entrypoint: str = ENTRYPOINT,
        live_lanes: Mapping[str, bool] | None = None,
    ) -> None:
        """`given_weights` are those of tenants for which no other is set.

        `live_lanes` are those that take live calls, each with whether it always has an engine.

        `engine_deaths_per_day` is how many engines may die of a tenant's requests in a day, where
        nothing else is set, before the rest of them waits for the next day.
        """
        self._state = state
        self._storage = storage
        self._cluster = cluster
        self._ready_rows = ready_rows
        self._silence_seconds = silence_seconds
        self._attempts = attempts
        self._given_weights = given_weights or {}
        self._engine_deaths_per_day = engine_deaths_per_day
        #: None before scripts know them.
        self._weights: Mapping[str, float] | None = None
        self._entrypoint = entrypoint
        self._live_lanes = live_lanes or {}
        self._fruitless = FruitlessJobs(attempts)
        self._idle: set[str] = set()
        self._looked_at: defaultdict[str, float] = defaultdict(float)
        #: When a small batch was last made ready by itself.
        self._small_at: defaultdict[str, float] = defaultdict(float)
        self._fed: dict[str, Feeding] = {}
        #: Tenants whose slices wait, and those of each lane when it was last fed.
        self._held: frozenset[str] = frozenset()
        self._held_at_last: dict[str, frozenset[str]] = {}

    def begin(self) -> None:
        """Begin a term as leader: Redis may have been emptied or changed by others before it."""
        self._weights = None

    async def look_at_tenants(self) -> None:
        """Learn whose slices wait, and let the shares that scripts count know changed weights."""
        self._held = await self._state.tenants.spent(self._engine_deaths_per_day)
        found = weights(self._state.tenants.own(), self._given_weights)
        if found != self._weights:
            await self._state.lanes.set_weights(found)
            self._weights = found

    async def feed(self, lane: str) -> None:
        """Keep ready what the lane job can take, in the order that is right now."""
        backlog = await self._state.lanes.backlog(lane)
        held = self._held
        if not backlog.batches and not (held and backlog.ready):
            return
        began = time.monotonic()
        last = self._fed.get(lane)
        are_same_held = held == self._held_at_last.get(lane, held)
        if last is not None and are_same_held and last.is_enough(backlog, began):
            return
        job, served = await asyncio.gather(
            self._state.lanes.job(lane), self._state.lanes.served(lane)
        )
        now = LaneNow(served, self._weights or {}, job.token_rate, held)
        rows = max(job.rows_wanted, self._ready_rows)
        is_partial = last is not None and last.is_resting(backlog, began)
        slices, chosen = await self._choose(
            lane,
            now,
            rows=rows,
            depth=slices_per_batch(_NEWS if is_partial else max(1, backlog.batches)),
            newest=_NEWS if is_partial else None,
        )
        ended = time.monotonic()
        if last is not None and is_partial:
            fed = last.with_news(backlog, at=ended, seconds=ended - began, length=len(chosen))
        else:
            fed = Feeding(ended, ended - began, backlog, len(chosen))
        self._fed[lane] = fed
        self._held_at_last[lane] = held
        before = [slice_.member for slice_ in slices if slice_.is_ready]
        if (after := [slice_.member for slice_ in chosen]) != before:
            returned = sorted(set(before) - set(after))
            await self._state.lanes.feed(lane, after, returned=returned)
            crash.point("lanes.fed")

    async def feed_small(self, started: Started) -> None:
        """Make a small batch ready at once, at the head of its lane, until the lane is fed again.

        Of a crowd of small batches it does so with one now and then: the others wait for their
        places in the order.
        """
        if not started.is_small or started.tenant in self._held:
            return
        [lane], now = started.lanes, time.monotonic()
        if now - self._small_at[lane] >= _SMALL_SECONDS:
            self._small_at[lane] = now
            await self._state.lanes.feed(lane, [f"{started.batch_id}:0"])

    async def _choose(
        self, lane: str, now: LaneNow, *, rows: int, depth: int, newest: int | None
    ) -> tuple[list[ReadySlice], list[ReadySlice]]:
        """The slices that were looked at, and those to keep ready.

        With `newest`, what is ready stays, and only so many of the newest batches are looked at.

        A few slices of each batch are read, and more of those batches whose slices are all chosen.
        """
        slices = await self._state.lanes.candidates(lane, slices_per_batch=depth, newest=newest)
        while True:
            chosen = ready_list(slices, now, now=time.time(), rows=rows)
            batches, depth = exhausted(slices, chosen, depth=depth)
            if not batches:
                return slices, chosen
            known = {slice_.member for slice_ in slices}
            more = await self._state.lanes.candidates(lane, slices_per_batch=depth, among=batches)
            slices += [slice_ for slice_ in more if slice_.member not in known]

    async def keep(self, lane: str) -> None:
        """Keep a living job on a lane with work, and give back the claims of a dead one."""
        if (reason := await self._state.lanes.failure(lane)) is not None:
            # In this order, so that a dispatcher that takes over does both again.
            await self._dismiss(lane)
            await fail_lane(self._state, self._storage, lane, reason)
        await fail_lost_inputs(self._state, self._storage, lane)
        has_work = await self._has_work(lane)
        if has_work:
            self._idle.discard(lane)
        else:
            await self._rest(lane)
        job = await self._state.lanes.job(lane)
        if not job.id:
            if has_work:
                await self._open(lane)
        elif time.monotonic() - self._looked_at[lane] >= _LOOK_SECONDS:
            self._looked_at[lane] = time.monotonic()
            # Nothing waits for an idle lane's job, so it can be checked later.
            with nullcontext() if has_work else suppress(TransientError):
                await self._look_after(lane, job)

    @property
    def always(self) -> frozenset[str]:
        """Lanes that have an engine, and so a job, whether they have work or not."""
        return frozenset(lane for lane, is_always in self._live_lanes.items() if is_always)

    async def _has_work(self, lane: str) -> bool:
        if await self._needs_job(lane):
            return True
        return await self._state.lanes.claimed_count(lane) > 0

    async def _needs_job(self, lane: str) -> bool:
        """Whether the lane has batches that run, or is to have an engine for live calls."""
        if await self._state.lanes.active_count(lane) > 0:
            return True
        if lane not in self._live_lanes:
            return False
        return self._live_lanes[lane] or await self._state.doors.are_wanted(lane)

    async def _dismiss(self, lane: str) -> None:
        """Let the lane's job end. The next one reads the catalog again, which may be corrected."""
        job = await self._state.lanes.job(lane)
        if job.id:
            await self._state.lanes.open_job(lane, job.id, "")
            await self._state.claims.reap(lane, all_claims=True)

    async def _rest(self, lane: str) -> None:
        """Forget the tenants' shares, because nothing waits for the lane."""
        self._fruitless.forget(lane)
        if lane not in self._idle:
            self._idle.add(lane)
            await self._state.lanes.forget_served(lane)

    async def _look_after(self, lane: str, job: JobRecord) -> None:
        status = await self._cluster.status(job.id)
        step = next_step(
            job,
            status,
            is_needed=await self._needs_job(lane),
            now=time.time(),
            silence_seconds=self._silence_seconds,
        )
        match step:
            case Step.SUBMIT:
                await self._submit(lane, job.id)
            case Step.BURY:
                log.warning("lane_job.ended", lane=lane, job=job.id, status=status or "unknown")
                await self._bury(lane, job)
            case Step.STOP:
                log.error("lane_job.silent", lane=lane, job=job.id)
                await self._cluster.stop(job.id)
            case Step.NOTHING:
                pass

    async def _bury(self, lane: str, job: JobRecord) -> None:
        """Give back the dead job's claims at once, and open another job."""
        is_last = not job.rows and self._fruitless.would_be_last(lane)
        message = await self._cluster.message(job.id) if is_last else ""
        # First, and by one dispatcher only: a frozen one must not take back a later job's claims.
        if await self._state.lanes.open_job(lane, job.id, ""):
            return
        crash.point("lanes.buried")
        await self._state.claims.reap(lane, all_claims=True)
        crash.point("lanes.reaped")
        if job.rows:
            self._fruitless.forget(lane)
        else:
            self._fruitless.add(lane, time.monotonic())
        if is_last:
            reason = f"The lane job ended {self._attempts} times without a result. {message}"
            await fail_lane(self._state, self._storage, lane, reason)
            self._fruitless.forgive(lane)
        if await self._needs_job(lane):
            await self._open(lane)

    async def _open(self, lane: str) -> None:
        if not self._fruitless.may_open(lane, time.monotonic()):
            return
        job = f"lane-{_slug(lane)}-{secrets.token_hex(4)}"
        if await self._state.lanes.open_job(lane, "", job) == job:
            crash.point("lanes.opened")
            await self._submit(lane, job)
            crash.point("lanes.submitted")

    async def _submit(self, lane: str, job: str) -> None:
        log.info("lane_job.submitted", lane=lane, job=job)
        entrypoint = self._entrypoint.format(lane=lane, job=job)
        await self._cluster.submit(job, entrypoint, metadata={"lane": lane})


def _slug(lane: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in lane).strip("-").lower()
