"""Deploys a lane's engine again that somebody has removed from Ray Serve while it has work."""

import asyncio
from collections.abc import Callable

import structlog

from shared.catalog import Lane
from shared.errors import TransientError
from shared.state import State
from worker.engine_errors import EngineFailedError
from worker.lane_engines import LaneEngines

log = structlog.get_logger()

#: How often it is looked whether the engine is there.
_LOOK_SECONDS = 10.0


class EngineKeeper:
    """Belongs to one lane job, of a model on one pool: of several, each is asked for anyway."""

    def __init__(
        self,
        state: State,
        engines: LaneEngines,
        *,
        lane: Lane,
        job: str,
        is_needed: Callable[[], bool],
    ) -> None:
        """While it is not needed, an engine that was removed stays so."""
        self._state = state
        self._engines = engines
        self._lane = lane
        self._job = job
        self._is_needed = is_needed

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            if not self._is_needed():
                continue
            try:
                # A job that was replaced may be of another catalog, and have another engine.
                is_ours = (await self._state.lanes.job(self._lane.name)).id == self._job
                if is_ours and await self._engines.restore(self._lane):
                    log.warning("engine.restored", lane=self._lane.name)
            except EngineFailedError as error:
                await self._state.lanes.fail(self._lane.name, str(error), job=self._job)
            except TransientError as error:
                log.info("engine.not_restored", lane=self._lane.name, reason=str(error))
