"""Looks at the engines in Ray, and records them for everybody who may not ask Ray."""

import time

import structlog

from dispatcher.cluster import Cluster
from dispatcher.engine_look import look
from shared.catalog import Catalog
from shared.engines import EngineRecord
from shared.errors import TransientError
from shared.retention import DAY_SECONDS
from shared.state import State

log = structlog.get_logger()


class EngineWatch:
    """Only the leader has one that looks."""

    def __init__(self, state: State, cluster: Cluster, catalog: Catalog) -> None:
        self._state = state
        self._cluster = cluster
        self._catalog = catalog
        self._is_cut_off = False

    async def look(self) -> None:
        """Record the engines as they are now, unless Ray is away. Raises TransientError."""
        before = await self._state.engines.last()
        try:
            applications = await self._cluster.applications()
        except TransientError as error:
            if not self._is_cut_off:
                log.warning("engines.unseen", reason=str(error))
            self._is_cut_off = True
            return
        self._is_cut_off = False
        now = time.time()
        seen = look(applications, before.engines, self._catalog, now=now)
        day = int(now) // DAY_SECONDS
        if await self._state.engines.look(before.number, seen.engines, seen.seconds, day=day):
            for engine in seen.engines:
                _tell(before.engines.get(engine.lane), engine)


def _tell(before: EngineRecord | None, engine: EngineRecord) -> None:
    """Write a line where the engine's state or reason has changed."""
    old = (before.state, before.reason) if before else ("asleep", "")
    if old == (engine.state, engine.reason):
        return
    fields = {"lane": engine.lane, "state": engine.state}
    if engine.reason:
        log.warning("engine.does_not_run", **fields, reason=engine.reason)
    elif engine.state == "running":
        log.info("engine.runs", **fields, start_seconds=round(engine.last_start_seconds, 1))
    else:
        log.info("engine.changed", **fields)
