"""The LoRA adapters of tenants that a replica has at hand, and vLLM has loaded.

Whoever has a row brings the adapter along, so the replica needs no login. It stays for rows to come
until others need the place, or its tenant deletes it.
"""

import asyncio
import os
import shutil
import tempfile
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import structlog

from shared.adapter_archive import AdapterLimits, BadAdapterError, adapter_in
from shared.errors import BatchyardError
from worker.engine_errors import Answer, EngineGoneError
from worker.engine_results import SERVER_ERROR, failure, refusal
from worker.leftovers import ADAPTER_FOLDER

log = structlog.get_logger()

#: Brings the adapter's file.
Bring = Callable[[], Awaitable[bytes]]
_NOT_FOUND = 404


class LoadError(BatchyardError):
    """The adapter cannot be loaded; the message says why."""


class Loader(Protocol):
    """What loads adapters: vLLM."""

    async def load(self, name: str, folder: Path) -> None:
        """Load what is in the folder, which stays until it is unloaded.

        Raises LoadError, and EngineGoneError if the engine has died.
        """

    async def unload(self, name: str) -> None:
        """Let go of it."""


@dataclass(slots=True)
class _Adapter:
    tenant: str
    folder: Path
    #: What runs with it. Until nothing does, vLLM may read its folder again at any step.
    users: int = 0
    #: It is to go as soon as nothing uses it.
    is_doomed: bool = False


class AdapterShelf:
    """Belongs to the event loop of the replica."""

    def __init__(self, loader: Loader, limits: AdapterLimits, *, kept: int) -> None:
        self._loader = loader
        self._limits = limits
        self._kept = kept
        #: By name, the least recently used first.
        self._adapters: OrderedDict[str, _Adapter] = OrderedDict()
        self._changing = asyncio.Lock()
        self._left = asyncio.Event()

    @property
    def names(self) -> list[tuple[str, str]]:
        """Tenant and name of each adapter that is here."""
        return [(one.tenant, name) for name, one in self._adapters.items()]

    def has(self, tenant: str, name: str) -> bool:
        """Whether the tenant may use the adapter without bringing it."""
        found = self._adapters.get(name)
        return found is not None and found.tenant == tenant and not found.is_doomed

    @asynccontextmanager
    async def used(self, tenant: str, name: str, bring: Bring) -> AsyncIterator[Answer | None]:
        """Keep the adapter loaded; yields the answer for those who cannot use it."""
        while not self.has(tenant, name):
            if (refused := await self.load(tenant, name, await bring())) is not None:
                yield refused
                return
        async with self.held(name):
            yield None

    @asynccontextmanager
    async def held(self, name: str) -> AsyncIterator[None]:
        """Keep an adapter loaded that is here."""
        adapter = self._adapters[name]
        self._adapters.move_to_end(name)
        adapter.users += 1
        try:
            yield
        finally:
            adapter.users -= 1
            if not adapter.users:
                self._left.set()
                if adapter.is_doomed:
                    await self._remove_unused([name])

    async def load(self, tenant: str, name: str, archive: bytes) -> Answer | None:
        """Let vLLM load the adapter; returns the answer to its rows if it cannot.

        Waits while all places are in use.
        """
        async with self._changing:
            if name in self._adapters:
                # Two rows have brought it; or it is deleted, and rows are still running with it.
                return None if self.has(tenant, name) else unknown(name)
            await self._make_room()
            try:
                adapter = await adapter_in(archive, self._limits)
            except BadAdapterError as error:
                return _refused(str(error))
            prefix = ADAPTER_FOLDER.format(os.getpid())
            folder = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix=prefix))
            with ExitStack() as undo:
                undo.callback(shutil.rmtree, folder, ignore_errors=True)
                await asyncio.to_thread(adapter.write, archive, folder)
                try:
                    await self._loader.load(name, folder)
                except LoadError as error:
                    return not_loaded(str(error))
                except EngineGoneError as error:
                    return failure(SERVER_ERROR, {"message": str(error), "type": "server_error"})
                undo.pop_all()
            self._adapters[name] = _Adapter(tenant, folder)
            log.info("adapter.loaded", adapter=name, tenant=tenant)
            return None

    async def forget(self, names: Collection[str]) -> None:
        """Unload what is deleted; rows that run with it end first."""
        for name in names:
            if name in self._adapters:
                self._adapters[name].is_doomed = True
        await self._remove_unused(names)

    async def close(self) -> None:
        """Remove what is here: vLLM's core, which had loaded it, is gone."""
        while self._adapters:
            _, adapter = self._adapters.popitem()
            await asyncio.to_thread(shutil.rmtree, adapter.folder, ignore_errors=True)

    async def _make_room(self) -> None:
        """Wait until there is a place for one more."""
        while len(self._adapters) >= self._kept:
            unused = [name for name, one in self._adapters.items() if not one.users]
            if unused:
                await self._remove(unused[0])
            else:
                self._left.clear()
                await self._left.wait()

    async def _remove_unused(self, names: Collection[str]) -> None:
        async with self._changing:
            for name in names:
                adapter = self._adapters.get(name)
                if adapter is not None and adapter.is_doomed and not adapter.users:
                    await self._remove(name)

    async def _remove(self, name: str) -> None:
        adapter = self._adapters.pop(name)
        await self._loader.unload(name)
        await asyncio.to_thread(shutil.rmtree, adapter.folder, ignore_errors=True)
        log.info("adapter.unloaded", adapter=name, tenant=adapter.tenant)


def unknown(name: str) -> Answer:
    """As vLLM answers a name that it does not serve."""
    return failure(
        _NOT_FOUND,
        {
            "message": f"The model `{name}` does not exist.",
            "type": "NotFoundError",
            "param": "model",
            "code": _NOT_FOUND,
        },
    )


def not_loaded(reason: str) -> Answer:
    """To requests of an adapter that vLLM cannot load."""
    return _refused(f"The adapter cannot be loaded: {reason}")


def _refused(message: str) -> Answer:
    return refusal(message, param="model", code="invalid_adapter")
