"""Keeps one lane job running per lane with work, and the lane's ready list short and in order."""

import asyncio
import json
import secrets
import time
from collections import defaultdict
from collections.abc import Mapping
from contextlib import nullcontext, suppress

import structlog

from dispatcher.cluster import Cluster
from dispatcher.ordering import order
from shared import crash
from shared.errors import InvalidTransitionError, TransientError
from shared.ledger.commits import fail, keep_lane_failure
from shared.lifecycle import Event
from shared.state import JobRecord, State
from shared.storage import Storage

log = structlog.get_logger()

#: How often Ray is asked about a job that gives signs of life.
_LOOK_SECONDS = 2.0
#: A job may need this long from its submission to its first sign of life.
_START_SECONDS = 180.0
_LONGEST_PAUSE_SECONDS = 60.0
#: Slices in a ready list: the most that one script call puts in order.
_MOST_READY = 100
#: Each costs a call to S3.
_FAILED_AT_ONCE = 12
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
        entrypoint: str = ENTRYPOINT,
    ) -> None:
        self._state = state
        self._storage = storage
        self._cluster = cluster
        self._ready_rows = ready_rows
        self._silence_seconds = silence_seconds
        self._attempts = attempts
        self._entrypoint = entrypoint
        self._idle: set[str] = set()
        self._looked_at: defaultdict[str, float] = defaultdict(float)
        self._fruitless: defaultdict[str, int] = defaultdict(int)
        self._not_before: defaultdict[str, float] = defaultdict(float)

    async def feed(self, lane: str) -> None:
        """Bring the ready list up to what the lane job can take, in the order that is right now."""
        batches, ready = await self._state.lanes.backlog(lane)
        if not batches or ready >= _MOST_READY:
            return
        job = await self._state.lanes.job(lane)
        rows = max(job.rows_wanted, self._ready_rows)
        candidates = await self._state.lanes.candidates(
            lane, slices_per_batch=_per_batch(rows, batches)
        )
        chosen = order(candidates, await self._state.lanes.served(lane), now=time.time(), rows=rows)
        # What is ready already stays so, behind what is more urgent.
        picked = set(chosen)
        chosen += [piece for piece in candidates if piece.is_ready and piece not in picked]
        # No more than are put in order together: the others would keep a place of their own.
        room = _MOST_READY - sum(piece.is_ready for piece in chosen)
        coming = [piece for piece in chosen if not piece.is_ready][: max(0, room)]
        if coming:
            members = [piece.member for piece in chosen if piece.is_ready or piece in coming]
            await self._state.lanes.feed(lane, members)
            crash.point("lanes.fed")

    async def keep(self, lane: str) -> None:
        """See that a lane with work has a living job, and that a dead one's claims go back."""
        if (reason := await self._state.lanes.failure(lane)) is not None:
            # In this order, so that a dispatcher that takes over does both again.
            await self._dismiss(lane)
            await self._fail(lane, reason)
        has_work = await self._state.lanes.active_count(lane) > 0
        has_work = has_work or await self._state.lanes.claimed_count(lane) > 0
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
            # Nobody waits for an idle lane's job: what Ray does not say now, it says later.
            with nullcontext() if has_work else suppress(TransientError):
                await self._look_after(lane, job)

    async def _dismiss(self, lane: str) -> None:
        """Let the lane's job end: the next one reads the catalog anew, mended perhaps."""
        job = await self._state.lanes.job(lane)
        if job.id:
            await self._state.lanes.open_job(lane, job.id, "")
            await self._state.claims.reap(lane, all_claims=True)

    async def _rest(self, lane: str) -> None:
        """Nobody waits for the lane: nobody is owed anything, and the next batch starts afresh."""
        self._fruitless.pop(lane, None)
        self._not_before.pop(lane, None)
        if lane not in self._idle:
            self._idle.add(lane)
            await self._state.lanes.forget_served(lane)

    async def _look_after(self, lane: str, job: JobRecord) -> None:
        now = time.time()
        status = await self._cluster.status(job.id)
        if status is None:
            # Opened and never submitted, or a new cluster that knows nothing of it.
            if not job.beat_at and await self._state.lanes.active_count(lane):
                await self._submit(lane, job.id)
            else:
                await self._bury(lane, job)
        elif status.is_over:
            log.warning("lane_job.ended", lane=lane, job=job.id, status=status)
            await self._bury(lane, job)
        elif now - (job.beat_at or job.opened_at + _START_SECONDS) > self._silence_seconds:
            log.error("lane_job.silent", lane=lane, job=job.id)
            await self._cluster.stop(job.id)

    async def _bury(self, lane: str, job: JobRecord) -> None:
        """The job is dead: what it held goes back at once, and another one takes its place."""
        is_last = not job.rows and self._fruitless[lane] + 1 >= self._attempts
        message = await self._cluster.message(job.id) if is_last else ""
        # First, and only by one: a dispatcher that was frozen must not take a later job's claims.
        if await self._state.lanes.open_job(lane, job.id, ""):
            return
        crash.point("lanes.buried")
        await self._state.claims.reap(lane, all_claims=True)
        crash.point("lanes.reaped")
        if job.rows:
            self._fruitless.pop(lane, None)
            self._not_before.pop(lane, None)
        else:
            self._fruitless[lane] += 1
            pause = min(_LONGEST_PAUSE_SECONDS, 2.0 ** self._fruitless[lane])
            self._not_before[lane] = time.monotonic() + pause
        if is_last:
            await self._fail(
                lane,
                f"The lane job ended {self._attempts} times without a result. {message}",
            )
            self._fruitless.pop(lane, None)
        if await self._state.lanes.active_count(lane):
            await self._open(lane)

    async def _open(self, lane: str) -> None:
        if time.monotonic() < self._not_before[lane]:
            return
        wanted = f"lane-{_slug(lane)}-{secrets.token_hex(4)}"
        if await self._state.lanes.open_job(lane, "", wanted) == wanted:
            crash.point("lanes.opened")
            await self._submit(lane, wanted)
            crash.point("lanes.submitted")

    async def _submit(self, lane: str, job: str) -> None:
        log.info("lane_job.submitted", lane=lane, job=job)
        entrypoint = self._entrypoint.format(lane=lane, job=job)
        await self._cluster.submit(job, entrypoint, metadata={"lane": lane})

    async def _fail(self, lane: str, reason: str) -> None:
        """Fail the lane's batches with the engine's reason, so that the lane does not spin.

        Batches with other lanes go on there.
        """
        problem = {
            "code": "engine_failed",
            "line": None,
            "param": "model",
            "message": reason,
        }
        fields = {"errors": json.dumps([problem]), "first_error": reason}
        while batches := await self._state.lanes.active(lane):
            for first in range(0, len(batches), _FAILED_AT_ONCE):
                some = batches[first : first + _FAILED_AT_ONCE]
                await asyncio.gather(*(self._fail_batch(lane, one, reason, fields) for one in some))
        await self._state.lanes.clear_failure(lane)
        log.error("lane.failed", lane=lane, reason=reason)

    async def _fail_batch(
        self, lane: str, batch_id: str, reason: str, fields: Mapping[str, str | int]
    ) -> None:
        try:
            if (await self._state.batches.get(batch_id)).lanes == [lane]:
                await fail(self._state, self._storage, batch_id, Event.LANE_FAILED, fields)
            else:
                await keep_lane_failure(self._storage, batch_id, lane, reason)
                await self._state.fail_lane(lane, batch_id, reason, fields)
        except InvalidTransitionError as error:
            log.warning("lane.fail_late", batch_id=batch_id, status=error.status)


def _per_batch(rows: int, batches: int) -> int:
    # Slices may be as small as one row; a few of each of many batches are enough to choose from,
    # and one batch alone must fill the list.
    return max(2, min(_MOST_READY, rows // 32), _MOST_READY // batches)


def _slug(lane: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in lane).strip("-").lower()
