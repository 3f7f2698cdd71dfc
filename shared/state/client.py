"""redis-py with this project's errors: what a repeat may mend is a TransientError."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.client import Pipeline
from redis.exceptions import BusyLoadingError, OutOfMemoryError, ReadOnlyError, RedisError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from shared.errors import TransientError

#: Lost connections, a server that loads its AOF, a replica, and a full memory or disk.
_BRIEF = (
    RedisConnectionError,
    RedisTimeoutError,
    BusyLoadingError,
    ReadOnlyError,
    OutOfMemoryError,
)
_DISK_FULL = "MISCONF"
#: uvloop's words for a write to a connection that was reset a moment before; asyncio's own loop has
#: a ConnectionError for it.
_RESET = "the handler is closed"


class Client(Redis):
    """A Redis client whose pipelines and commands raise TransientError."""

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        with translated():
            return await super().execute_command(*args, **options)

    def pipeline(self, transaction: bool = True, shard_hint: str | None = None) -> "_Pipeline":  # noqa: FBT001, FBT002  # redis-py's signature
        return _Pipeline(self.connection_pool, self.response_callbacks, transaction, shard_hint)


class _Pipeline(Pipeline):
    async def execute(self, raise_on_error: bool = True) -> list[Any]:  # noqa: FBT001, FBT002  # redis-py's signature
        with translated():
            return await super().execute(raise_on_error)


@contextmanager
def translated() -> Iterator[None]:
    """Turn redis-py's errors that a repeat may mend into TransientError.

    On Python 3.11 redis-py loses most cancellations of a task that waits for it (its timeouts go
    through `asyncio.wait_for`); what it has swallowed is raised here.
    """
    task = asyncio.current_task()
    before = task.cancelling() if task else 0
    try:
        yield
    except RedisError as error:
        if task and task.cancelling() > before:
            raise asyncio.CancelledError from error
        if isinstance(error, _BRIEF) or str(error).startswith(_DISK_FULL):
            raise TransientError(f"Redis: {error}") from error
        raise
    except RuntimeError as error:
        if _RESET in str(error):
            raise TransientError("Redis: the connection was reset.") from error
        raise
    if task and task.cancelling() > before:
        raise asyncio.CancelledError
