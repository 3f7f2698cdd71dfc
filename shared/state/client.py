"""redis-py with this project's errors: whatever a retry may fix is a TransientError."""

import asyncio
import math
import re
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from redis.asyncio import Redis
from redis.asyncio.client import Pipeline
from redis.asyncio.retry import Retry
from redis.exceptions import BusyLoadingError, OutOfMemoryError, ReadOnlyError, RedisError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from shared.call_times import timed
from shared.errors import TransientError
from shared.state.trips import Command, Trips

T = TypeVar("T")

#: Lost connections, a server that is loading its data, a replica, and full memory.
_BRIEF = (
    RedisConnectionError,
    RedisTimeoutError,
    BusyLoadingError,
    ReadOnlyError,
    OutOfMemoryError,
)
_DISK_FULL = "MISCONF"
#: The error code of our scripts during a rebuild.
REBUILDING = "REBUILDING"
#: In a pipeline, redis-py puts the command and punctuation before the server's message.
_BRIEFLY_REFUSED = re.compile(rf"(?:^|caused error: \W*)(?:{_DISK_FULL}|{REBUILDING}) ")
#: uvloop's message for a write to a connection that has just been reset. asyncio's own loop raises
#: a ConnectionError there.
_RESET = "the handler is closed"
#: Commands that may block.
_WAITING = frozenset({"XREAD"})
#: The deadline of the current round trip, on the monotonic clock.
_deadline: ContextVar[float] = ContextVar("deadline", default=math.inf)


class Client(Redis):
    """A Redis client whose pipelines and commands raise TransientError."""

    #: How long a call is retried. The last attempt may still take its own timeout after that.
    patience_seconds = 30.0

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._trips = Trips(self._send)

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        if args[0] not in _WAITING:
            with timed("redis"), translated():
                return await self._trips.call(Command(args, options))
        # What waits for something to happen says nothing about Redis, and would hold up the others.
        with translated(), _trying_for(self.patience_seconds):
            return await super().execute_command(*args, **options)

    async def aclose(self, close_connection_pool: bool | None = None) -> None:  # noqa: FBT001  # redis-py's signature
        await self._trips.end()
        await super().aclose(close_connection_pool)

    async def _send(self, commands: Sequence[Command]) -> list[Any]:
        pipe = Pipeline(self.connection_pool, self.response_callbacks, False, None)
        pipe.command_stack.extend(commands)
        with _trying_for(self.patience_seconds):
            async with pipe:
                return await pipe.execute(raise_on_error=False)

    def pipeline(self, transaction: bool = True, shard_hint: str | None = None) -> "_Pipeline":  # noqa: FBT001, FBT002  # redis-py's signature
        pipe = _Pipeline(self.connection_pool, self.response_callbacks, transaction, shard_hint)
        pipe.patience_seconds = self.patience_seconds
        return pipe


class _Pipeline(Pipeline):
    patience_seconds = 30.0

    async def execute(self, raise_on_error: bool = True) -> list[Any]:  # noqa: FBT001, FBT002  # redis-py's signature
        with timed("redis"), translated(), _trying_for(self.patience_seconds):
            return await super().execute(raise_on_error)


class BoundedRetry(Retry):
    """redis-py's Retry with a deadline.

    redis-py counts the attempts of each step of a command separately. With a server that accepts
    connections and never answers, they add up to minutes.
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
    """Turn redis-py's errors that a retry may fix into TransientError.

    On Python 3.11 redis-py loses most cancellations of a task that waits for it, because its
    timeouts use `asyncio.wait_for`. Lost cancellations are raised again here.
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
