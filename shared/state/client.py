"""redis-py with this project's errors: what a repeat may mend is a TransientError."""

from typing import Any

from redis.asyncio import Redis
from redis.asyncio.client import Pipeline
from redis.exceptions import BusyLoadingError, ReadOnlyError, RedisError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from shared.errors import TransientError

#: Lost connections, a server that loads its AOF, a replica, and a full memory or disk.
_BRIEF = (RedisConnectionError, RedisTimeoutError, BusyLoadingError, ReadOnlyError)
_FULL = ("OOM", "MISCONF")


class Client(Redis):
    """A Redis client whose pipelines and commands raise TransientError."""

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        try:
            return await super().execute_command(*args, **options)
        except RedisError as error:
            raise _translated(error) from error

    def pipeline(self, transaction: bool = True, shard_hint: str | None = None) -> "_Pipeline":  # noqa: FBT001, FBT002  # redis-py's signature
        return _Pipeline(self.connection_pool, self.response_callbacks, transaction, shard_hint)


class _Pipeline(Pipeline):
    async def execute(self, raise_on_error: bool = True) -> list[Any]:  # noqa: FBT001, FBT002  # redis-py's signature
        try:
            return await super().execute(raise_on_error)
        except RedisError as error:
            raise _translated(error) from error


def _translated(error: RedisError) -> Exception:
    if isinstance(error, _BRIEF) or str(error).startswith(_FULL):
        return TransientError(f"Redis: {error}")
    return error
