"""Which requests of a tenant were answered before, and where their answers are.

Losing this is harmless: the requests are asked again. The answers themselves are in output files.
"""

import secrets
from collections.abc import AsyncIterator, Mapping, Sequence

from shared.state.client import Client

#: Entries in one command, and commands in one round trip.
_MANY, _COMMANDS = 1000, 10
#: The field with the tenant's secret. A key has other characters.
_SECRET = "=secret"  # noqa: S105  # the name of a field


class Answers:
    """The noun `answer` of State: by tenant, the place of each answer by the key of its request."""

    def __init__(self, redis: Client, namespace: str) -> None:
        self._redis = redis
        self._namespace = namespace

    async def secret(self, tenant: str) -> str:
        """The secret that the tenant's keys are made with. It is new after `clear`."""
        key = self._key(tenant)
        await self._redis.hsetnx(key, _SECRET, secrets.token_hex(16))
        return await self._redis.hget(key, _SECRET) or ""

    async def look(self, tenant: str, keys: Sequence[str]) -> list[str | None]:
        """The entry of each key, whether or not its time is over; None where there is none."""
        found: list[str | None] = []
        for first in range(0, len(keys), _MANY * _COMMANDS):
            async with self._redis.pipeline(transaction=False) as pipe:
                for start in range(first, min(len(keys), first + _MANY * _COMMANDS), _MANY):
                    pipe.hmget(self._key(tenant), list(keys[start : start + _MANY]))
                for values in await pipe.execute():
                    found += values
        return found

    async def add(self, tenant: str, entries: Mapping[str, str], *, most: int, seconds: int) -> int:
        """Write entries, as long as the tenant has no more than `most`; returns how many.

        All of them are forgotten `seconds` after the last one was written. Those that are known
        already are written again.
        """
        key = self._key(tenant)
        room = max(0, most - await self.count(tenant))
        some = dict(list(entries.items())[:room])
        if not some:
            return 0
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.hset(key, mapping=some)
            pipe.expire(key, seconds)
            await pipe.execute()
        return len(some)

    async def count(self, tenant: str) -> int:
        """How many entries the tenant has, with those whose time is over."""
        key = self._key(tenant)
        return await self._redis.hlen(key) - await self._redis.hexists(key, _SECRET)

    async def entries(self, tenant: str) -> AsyncIterator[dict[str, str]]:
        """All entries by their keys, some at a time. What changes meanwhile may be missed."""
        cursor = 0
        while True:
            cursor, some = await self._redis.hscan(self._key(tenant), cursor, count=_MANY)
            some.pop(_SECRET, None)
            yield some
            if not cursor:
                return

    async def drop(self, tenant: str, keys: Sequence[str]) -> None:
        """Forget these."""
        if keys:
            await self._redis.hdel(self._key(tenant), *keys)

    async def clear(self, tenant: str) -> int:
        """Forget all of the tenant's, with the secret; returns how many there were."""
        count = await self.count(tenant)
        await self._redis.unlink(self._key(tenant))
        return count

    def _key(self, tenant: str) -> str:
        return f"{self._namespace}answers:{tenant}"
