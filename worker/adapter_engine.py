"""An engine whose requests may name LoRA adapters of their tenants: their files are fetched here.

The engine itself holds no login of S3. It gets each file as a reference of Ray's, and asks for the
bytes if it has not loaded the adapter yet.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import msgspec

from shared.adapters import adapter_named
from shared.errors import NotFoundError, TransientError
from shared.ordering.work import Work
from shared.settings import open_storage
from shared.storage import Storage
from worker.adapter_files import adapter_file
from worker.engine_errors import Engine, EngineUnavailableError, Results
from worker.settings import WorkerSettings

#: For how long a file is taken to be there that was, so that one row in thousands asks.
_FRESH_SECONDS = 5.0
#: Bytes of files that one process keeps in Ray's store.
_KEPT_BYTES = 512 * 1024 * 1024
#: What each name of an adapter has in it.
_MARK = b":file-"

#: Puts bytes where other machines of the cluster find them.
Put = Callable[[bytes], Awaitable[Any]]


class _Body(msgspec.Struct):
    model: Any = None


class _Line(msgspec.Struct):
    body: _Body


class _File(NamedTuple):
    reference: Any
    size: int
    seen_at: float


def with_adapters(engine: Engine, settings: WorkerSettings) -> "AdapterEngine":
    """The engine, for requests that may name adapters."""
    return AdapterEngine(engine, lambda: open_storage(settings), _put)


class AdapterEngine:
    """Belongs to one event loop, as the engine that it stands in front of."""

    def __init__(self, engine: Engine, open_storage: Callable[[], Storage], put: Put) -> None:
        self._engine = engine
        self._open_storage = open_storage
        self._put = put
        self._storage: Storage | None = None
        #: By tenant and file, the one that was used last at the end.
        self._files: dict[tuple[str, str], _File] = {}
        self._looking: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()

    async def run_lines(
        self, lines: Sequence[bytes], order: Sequence[Work]
    ) -> AsyncGenerator[Results, None]:
        """As the engine does. It refuses lines whose tenant has no such adapter."""
        if any(_MARK in line for line in lines):
            order = [
                await self._with_adapter(line, work)
                for line, work in zip(lines, order, strict=True)
            ]
        async with aclosing(self._engine.run_lines(lines, order)) as groups:
            async for group in groups:
                yield group

    async def withdraw(self, batch_id: str) -> None:
        """Take out all lines of the batch that the engine does not run yet."""
        await self._engine.withdraw(batch_id)

    async def _with_adapter(self, line: bytes, work: Work) -> Work:
        file_id = _file_id(line)
        if file_id is None:
            return work
        try:
            return work._replace(adapter=await self._reference(work.tenant, file_id))
        except NotFoundError:
            return work
        except TransientError as error:
            raise EngineUnavailableError("S3 is away, and rows name adapters in it.") from error

    async def _reference(self, tenant: str, file_id: str) -> Any:
        """Raises NotFoundError and TransientError."""
        key = tenant, file_id
        async with self._looking.setdefault(key, asyncio.Lock()):
            known = self._files.pop(key, None)
            now = time.monotonic()
            if known is None or now - known.seen_at > _FRESH_SECONDS:
                known = await self._look(tenant, file_id, known)
            self._files[key] = known
            self._let_go()
            return known.reference

    async def _look(self, tenant: str, file_id: str, known: _File | None) -> _File:
        if self._storage is None:
            self._storage = self._open_storage()
        file = await adapter_file(self._storage, tenant, file_id)
        if known is not None:
            return known._replace(seen_at=time.monotonic())
        archive = await self._storage.get(file.key, etag=file.etag, bucket=file.bucket)
        return _File(await self._put(archive), len(archive), time.monotonic())

    def _let_go(self) -> None:
        """Forget files, but for the last: the store keeps them for as long as a row needs them."""
        size = sum(file.size for file in self._files.values())
        while size > _KEPT_BYTES and len(self._files) > 1:
            size -= self._files.pop(next(iter(self._files))).size


def _file_id(line: bytes) -> str | None:
    """The file of the adapter that the line's request names; None if it names none."""
    if _MARK not in line:
        return None
    try:
        model = msgspec.json.decode(line, type=_Line).body.model
    except msgspec.DecodeError:
        # The engine says what is wrong with it.
        return None
    own = adapter_named(model) if isinstance(model, str) else None
    return own and own.file_id


async def _put(archive: bytes) -> Any:
    import ray

    return await asyncio.to_thread(ray.put, archive)
