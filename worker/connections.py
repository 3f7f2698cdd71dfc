"""The connections of one worker process to Redis and S3, made from its settings."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import cache
from typing import TypeVar

from shared.monitoring import log
from shared.settings import open_storage
from shared.state import State
from shared.storage import Storage
from worker.settings import WorkerSettings

T = TypeVar("T")


def open_state(settings: WorkerSettings) -> State:
    """A connection to Redis. Belongs to the event loop that first uses it."""
    return State(settings.redis_url.get_secret_value())


@asynccontextmanager
async def opened(settings: WorkerSettings) -> AsyncIterator[tuple[State, Storage]]:
    """Both connections, open for as long as the block lasts."""
    state, storage = open_state(settings), open_storage(settings)
    try:
        yield state, storage
    finally:
        storage.close()
        await state.close()


def read_settings() -> WorkerSettings:
    """The settings of this process."""
    return WorkerSettings.read()


def run_with_stores(work: Callable[[State, Storage], Awaitable[T]]) -> T:
    """Run `work` in a Ray task. The connections stay open for the tasks after it."""
    loop, state, storage = _stores()

    async def run() -> T:
        return await work(state, storage)

    return asyncio.run_coroutine_threadsafe(run(), loop).result()


@cache
def _stores() -> tuple[asyncio.AbstractEventLoop, State, Storage]:
    # Ray runs one task after another in a process, and has no place where tasks can keep state.
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True, name="stores").start()
    settings = read_settings()
    log.configure_own("wave", settings.log_level)
    return loop, open_state(settings), open_storage(settings)
