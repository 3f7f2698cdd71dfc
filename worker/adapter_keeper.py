"""Lets engines unload the LoRA adapters that their tenants have deleted."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

import structlog

from shared.adapters import adapter_named
from shared.catalog import Lane
from shared.errors import NotFoundError, TransientError
from shared.storage import Storage
from worker.adapter_files import adapter_file

log = structlog.get_logger()

#: How long a deleted adapter may stay in an engine's memory, where nobody can use it any more.
LOOK_SECONDS = 10.0


class Engines(Protocol):
    """The engines of a lane job."""

    async def adapters(self, engine: Lane) -> set[tuple[str, str]]:
        """Tenant and name of each tenant's adapter that is loaded. Raises TransientError."""

    async def forget_adapters(self, engine: Lane, names: Sequence[str]) -> None:
        """Let the engine's replicas unload these adapters."""


class AdapterKeeper:
    """Belongs to one lane job, which may have an engine on each of its model's pools."""

    def __init__(
        self,
        storage: Storage,
        engines: Engines,
        *,
        lanes: tuple[Lane, ...],
        is_busy: Callable[[], bool],
    ) -> None:
        """While nothing `is_busy`, nobody is asked: calls would keep an engine from its sleep."""
        self._storage = storage
        self._engines = engines
        self._lanes = lanes
        self._is_busy = is_busy

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            for lane in self._lanes if self._is_busy() else ():
                try:
                    await self._look(lane)
                except TransientError as error:
                    log.debug("adapters.not_seen", lane=lane.name, reason=str(error))

    async def _look(self, lane: Lane) -> None:
        gone = [
            name
            for tenant, name in await self._engines.adapters(lane)
            if await self._is_gone(tenant, name)
        ]
        if gone:
            await self._engines.forget_adapters(lane, gone)

    async def _is_gone(self, tenant: str, name: str) -> bool:
        own = adapter_named(name)
        try:
            await adapter_file(self._storage, tenant, own.file_id if own else "")
        except NotFoundError:
            return True
        return False
