"""Asks the replicas of a lane's engines what they have counted, and how far rows are.

It is recorded for metrics, and for predictions.

The way is the one that rows take: over Ray, with its token. No replica has a port for it.
"""

import asyncio
from collections.abc import Callable

import structlog

from shared.catalog import Lane
from shared.errors import TransientError
from shared.rows_in_engine import LOOK_SECONDS
from shared.state import State
from worker.lane_engines import LaneEngines

log = structlog.get_logger()


class ReplicaWatch:
    """Belongs to one lane job, which may have an engine on each of its model's pools."""

    def __init__(
        self,
        state: State,
        engines: LaneEngines,
        *,
        lanes: tuple[Lane, ...],
        is_busy: Callable[[], bool],
        slices_held: Callable[[], int],
    ) -> None:
        """While nothing `is_busy`, nobody is asked: calls would keep an engine from its sleep.

        `slices_held` says how many slices the job has had in all: some are over between two looks.
        """
        self._state = state
        self._engines = engines
        self._lanes = lanes
        self._is_busy = is_busy
        self._slices_held = slices_held

    async def run(self) -> None:
        """Ask until cancelled; once more after the last work has ended."""
        was_busy, held_before = False, 0
        while True:
            is_busy, held = self._is_busy(), self._slices_held()
            if is_busy or was_busy or held != held_before:
                await self._look()
            was_busy, held_before = is_busy, held
            await asyncio.sleep(LOOK_SECONDS)

    async def _look(self) -> None:
        for lane in self._lanes:
            try:
                if found := await self._engines.numbers(lane):
                    await self._state.engines.count(lane.name, found)
            except TransientError as error:
                log.debug("engine.not_counted", lane=lane.name, reason=str(error))
