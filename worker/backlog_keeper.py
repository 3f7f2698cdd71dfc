"""Tells the engines of a lane how many replicas their batches need."""

import asyncio
import time
from collections.abc import Callable

import structlog

from shared.catalog import Lane
from shared.errors import TransientError
from shared.state import State
from worker.backlog import ReplicaRate, replicas_needed
from worker.lane_engines import LaneEngines

log = structlog.get_logger()

#: How often they are told.
_LOOK_SECONDS = 10.0


class BacklogKeeper:
    """Belongs to one lane job, which may have an engine on each of its model's pools."""

    def __init__(
        self,
        state: State,
        engines: LaneEngines,
        *,
        lanes: tuple[Lane, ...],
        seats: int,
        backlog_seconds: float,
        rows: Callable[[], int],
    ) -> None:
        """`seats` are those of one replica, and `rows` is how many the lane job has now."""
        self._state = state
        self._engines = engines
        self._lanes = lanes
        self._backlog_seconds = backlog_seconds
        self._rows = rows
        self._rate = ReplicaRate(seats=seats)

    async def run(self) -> None:
        """Tell them until cancelled, while there are rows: calls keep an engine from its sleep."""
        while True:
            if rows := self._rows():
                try:
                    await self._look(rows)
                except TransientError as error:
                    log.debug("engine.not_told", lane=self._lanes[0].name, reason=str(error))
            else:
                self._rate.skip()
            await asyncio.sleep(_LOOK_SECONDS)

    async def _look(self, rows: int) -> None:
        name = self._lanes[0].name
        done, outlook = await asyncio.gather(
            self._state.lanes.done(name), self._state.lanes.outlook(name)
        )
        engines = [await self._state.engines.one(lane.name) for lane in self._lanes]
        replicas = [one for engine in engines if engine for one in engine.replicas]
        self._rate.measure(
            sum(one.predicted for one in done.values()),
            time.monotonic(),
            replicas=sum(one.state == "running" for one in replicas),
            rows=rows,
        )
        if self._rate.tokens_per_second and not outlook.running:
            # There are rows, but nobody foresees them, as where answers tell no tokens.
            return
        needed = replicas_needed(
            outlook.running,
            tokens_per_second=self._rate.tokens_per_second,
            now=time.time(),
            backlog_seconds=self._backlog_seconds,
        )
        log.debug("engine.needed", lane=name, replicas=round(needed, 2))
        for lane in self._lanes:
            await self._engines.expect(lane, needed)
