"""Rounds: look at every batch and lane, when a doorbell rings, and start what each needs."""

import asyncio
import time
from contextlib import nullcontext
from functools import partial

from dispatcher.duties import Duties, survive
from dispatcher.finaliser import Finaliser
from dispatcher.hurry import Hurry
from dispatcher.lanes import LaneKeeper
from dispatcher.planning import Planner
from dispatcher.remaker import Remaker
from dispatcher.round_pace import RoundPace
from dispatcher.traces import name_rest
from shared.errors import NotFoundError
from shared.lifecycle import Status
from shared.state import State
from shared.tenant_slots import TenantSlots

#: A round is made this often even if no bell rings.
_SWEEP_SECONDS = 1.0
#: After a round that failed.
_FAILURE_PAUSE_SECONDS = 1.0
#: Batches that are planned at a time, and batches that are finished at a time.
#: Each may hold a thread of the storage, which has fewer than twice as many.
_SLOTS = 12


class Rounds:
    """Finds work by the status of batches alone, so a new leader finds all of it."""

    def __init__(
        self,
        state: State,
        *,
        planner: Planner,
        finaliser: Finaliser,
        remaker: Remaker,
        lanes: LaneKeeper,
        hurry: Hurry | None = None,
    ) -> None:
        """Batches that are planned or finished are in a hurry."""
        self._state = state
        self._planner = planner
        self._finaliser = finaliser
        self._remaker = remaker
        self._lanes = lanes
        self._hurry = hurry or Hurry()
        # Two pools, so that finishing batches does not delay what the engines could run.
        self._planning = TenantSlots(_SLOTS)
        self._finishing = TenantSlots(_SLOTS)
        self._duties = Duties()

    async def run(self) -> None:
        """Make rounds until cancelled. Raises TransientError if Redis is lost at the start."""
        try:
            self._lanes.begin()
            async with self._state.bells("dispatcher") as bells:
                pace = RoundPace()
                while True:
                    began_at = time.monotonic()
                    if await survive(self._round, "round") is not None:
                        await asyncio.sleep(_FAILURE_PAUSE_SECONDS)
                    now = time.monotonic()
                    pace.made(now, now - began_at)
                    await asyncio.sleep(pace.rest(now))
                    await survive(partial(bells.wait, _SWEEP_SECONDS), "bell")
        finally:
            await self._duties.end()

    async def plan(self, batch_id: str) -> None:
        """Plan the batch when it is its tenant's turn."""
        tenant = await self._tenant(batch_id)
        async with self._planning.taken(tenant):
            with self._hurry.here():
                started = await self._planner.plan(batch_id)
                if started is not None:
                    await survive(partial(self._lanes.feed_small, started), "feed", of=batch_id)

    async def finish(self, batch_id: str) -> None:
        """End the batch when it is its tenant's turn."""
        tenant = await self._tenant(batch_id)
        async with self._finishing.taken(tenant):
            with self._hurry.here():
                await self._finaliser.finish(batch_id)

    async def remake(self, batch_id: str) -> None:
        """Make the batch's damaged files again when it is its tenant's turn."""
        try:
            tenant = await self._tenant(batch_id)
        except NotFoundError:
            # The wish is settled all the same.
            tenant = ""
        async with self._finishing.taken(tenant):
            await self._remaker.remake(batch_id)

    async def _tenant(self, batch_id: str) -> str:
        """Whose the batch is; from then on, log lines of this duty name the batch's trace.

        Raises NotFoundError.
        """
        record = await self._state.batches.get(batch_id)
        name_rest(record)
        return record.tenant

    async def _round(self) -> None:
        batches = self._state.batches
        # In one round trip: a small batch waits for several rounds.
        _, new, over, closing, damaged, lanes = await asyncio.gather(
            self._lanes.look_at_tenants(),
            batches.in_status(Status.VALIDATING),
            batches.in_status(Status.FINALIZING),
            batches.in_status(Status.CANCELLING),
            self._state.remakes.waiting(),
            self._state.lanes.names(),
        )
        for batch_id in new:
            self._duties.start(batch_id, self.plan, nullcontext())
        for batch_id in (*over, *closing):
            self._duties.start(batch_id, self.finish, nullcontext())
        for batch_id in damaged:
            self._duties.start(batch_id, self.remake, nullcontext())
        for lane in sorted(self._lanes.always.union(lanes)):
            await survive(partial(self._lanes.feed, lane), "feed", of=lane)
            # In the background, because Ray may not answer, and batches must continue.
            self._duties.start(lane, self._lanes.keep, nullcontext())
