"""Whether Redis is being rebuilt from S3, when what it says may be outdated."""

from collections.abc import Callable
from typing import Any

from redis.asyncio.client import Pipeline

from shared.errors import TransientError
from shared.state.client import Client


def raise_if(is_rebuilding: Any) -> None:
    """Raise TransientError if it is so."""
    if is_rebuilding:
        raise TransientError("Redis is being rebuilt from S3. Try again later.")


async def read_for_sure(
    redis: Client, namespace: str, ask: Callable[[Pipeline], object]
) -> list[Any]:
    """The answers to what is asked, all of one moment. Raises TransientError during a rebuild.

    Asking whether one is under way before or after would not do: a call may wait for a Redis that
    is away, and be answered by an older one that has begun a rebuild, or has ended it since.
    """
    async with redis.pipeline(transaction=True) as pipe:
        pipe.exists(f"{namespace}rebuilding")
        ask(pipe)
        is_rebuilding, *found = await pipe.execute()
    raise_if(is_rebuilding)
    return found
