"""The connections of one worker process to Redis and S3, made from its settings."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from shared.settings import open_storage
from shared.state import State
from shared.storage import Storage
from worker.settings import WorkerSettings


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
