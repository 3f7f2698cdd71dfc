"""Shows gateways where the engines of a lane take live calls, and starts one that is wanted."""

import asyncio

import structlog

from shared.catalog import Lane
from shared.doors import Door
from shared.errors import TransientError
from shared.state import State
from worker.engine_errors import EngineFailedError
from worker.lane_engines import LaneEngines

log = structlog.get_logger()

#: How often doors are looked for. A replica that has just started is found within this time.
_LOOK_SECONDS = 0.5


class DoorKeeper:
    """The doors of one lane, which may have an engine on each of its model's pools."""

    def __init__(
        self,
        state: State,
        engines: LaneEngines,
        *,
        lanes: tuple[Lane, ...],
        job: str,
        always: bool,
    ) -> None:
        """The first of `lanes` is the job's. `always` keeps an engine wanted without calls."""
        self._state = state
        self._engines = engines
        self._lanes = lanes
        self._job = job
        self._always = always
        #: Whether an engine is wanted for live calls.
        self.is_wanted = always
        self._waking: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Keep them until cancelled."""
        try:
            while True:
                try:
                    await self._look()
                except TransientError as error:
                    log.warning("doors.not_shown", lane=self._lanes[0].name, reason=str(error))
                await asyncio.sleep(_LOOK_SECONDS)
        finally:
            if self._waking is not None:
                self._waking.cancel()

    async def _look(self) -> None:
        found: list[Door] = []
        for lane in self._lanes:
            doors = await self._engines.doors(lane)
            if any(door.is_for_people for door in doors):
                free = sum(not door.is_for_people for door in doors)
                await self._engines.know_free(lane, free)
            found += doors
        wanted = await self._state.doors.show(self._lanes[0].name, self._job, found)
        self.is_wanted = self._always or wanted
        # With several pools, those are asked one after the other that have room.
        is_asleep = self._waking is None or self._waking.done()
        if self.is_wanted and not found and len(self._lanes) == 1 and is_asleep:
            self._waking = asyncio.create_task(self._wake())

    async def _wake(self) -> None:
        lane = self._lanes[0]
        try:
            await self._engines.wake(lane)
        except EngineFailedError as error:
            await self._state.lanes.fail(lane.name, str(error), job=self._job)
        except TransientError as error:
            log.info("engine.not_woken", lane=lane.name, reason=str(error))
