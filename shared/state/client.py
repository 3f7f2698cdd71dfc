"""redis-py with this project's errors: what a repeat may mend is a TransientError."""

import asyncio
import math
import re
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from redis.asyncio import Redis
from redis.asyncio.client import Pipeline
from redis.asyncio.retry import Retry
from redis.exceptions import BusyLoadingError, OutOfMemoryError, ReadOnlyError, RedisError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from shared.errors import TransientError

T = TypeVar("T")

#: Lost connections, a server that loads its AOF, a replica, and a full memory or disk.
_BRIEF = (
    RedisConnectionError,
    RedisTimeoutError,
    BusyLoadingError,
    ReadOnlyError,
    OutOfMemoryError,
)
_DISK_FULL = "MISCONF"
#: What our scripts say while the index is made again.
REBUILDING = "REBUILDING"
#: In a pipeline, redis-py puts the command before what the server says, and signs around it.
_BRIEFLY_REFUSED = re.compile(rf"(?:^|caused error: \W*)(?:{_DISK_FULL}|{REBUILDING}) ")
#: uvloop's words for a write to a connection that was reset a moment before; asyncio's own loop has
#: a ConnectionError for it.
_RESET = "the handler is closed"
#: Of the call under way, on the monotonic clock.
_deadline: ContextVar[float] = ContextVar("deadline", default=math.inf)


class Client(Redis):
    """A Redis client whose pipelines and commands raise TransientError."""

    #: How long a call is tried again and again; the one that is under way then may still take its
    #: own timeout.
    patience_seconds = 30.0

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        with translated(), _trying_for(self.patience_seconds):
            return await super().execute_command(*args, **options)

    def pipeline(self, transaction: bool = True, shard_hint: str | None = None) -> "_Pipeline":  # noqa: FBT001, FBT002  # redis-py's signature
        pipe = _Pipeline(self.connection_pool, self.response_callbacks, transaction, shard_hint)
        pipe.patience_seconds = self.patience_seconds
        return pipe


class _Pipeline(Pipeline):
    patience_seconds = 30.0

    async def execute(self, raise_on_error: bool = True) -> list[Any]:  # noqa: FBT001, FBT002  # redis-py's signature
        with translated(), _trying_for(self.patience_seconds):
            return await super().execute(raise_on_error)


class BoundedRetry(Retry):
    """redis-py's, which for one command counts the tries of each of its steps apart.

    Where a server takes connections and says nothing, they multiply to minutes.
    """

    async def call_with_retry(
        self, do: Callable[[], Awaitable[T]], fail: Callable[..., Any], *more: Any, **options: Any
    ) -> T:
        async def failed(error: Exception, *count: int) -> None:
            await fail(error, *count)
            if time.monotonic() >= _deadline.get():
                raise error

        return await super().call_with_retry(do, failed, *more, **options)


@contextmanager
def _trying_for(seconds: float) -> Iterator[None]:
    token = _deadline.set(time.monotonic() + seconds)
    try:
        yield
    finally:
        _deadline.reset(token)


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
        if isinstance(error, _BRIEF) or _BRIEFLY_REFUSED.search(str(error)):
            raise TransientError(f"Redis: {error}") from error
        raise
    except RuntimeError as error:
        if _RESET in str(error):
            raise TransientError("Redis: the connection was reset.") from error
        raise
    if task and task.cancelling() > before:
        raise asyncio.CancelledError
