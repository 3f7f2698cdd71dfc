"""Events besides the outbox: those that can be told again, and those that are told only now."""

from typing import NamedTuple

from shared.state.client import Client
from shared.state.outbox import Entry
from shared.state.scripts import Scripts


class Change(NamedTuple):
    """A batch and its last change of state, in Unix microseconds; no two of a tenant are alike."""

    batch_id: str
    at: int


class Events:
    """The noun `event` of State."""

    def __init__(self, redis: Client, scripts: Scripts, namespace: str) -> None:
        self._redis = redis
        self._scripts = scripts
        self._namespace = namespace

    async def history(self, batch_ids: list[str]) -> list[list[Entry]]:
        """Each batch's changes of state in order, in one round trip; none a week after its end."""
        async with self._redis.pipeline(transaction=False) as pipe:
            for batch_id in batch_ids:
                pipe.lrange(f"{self._namespace}events:{batch_id}", 0, -1)
            return [[Entry.from_text(text) for text in texts] for texts in await pipe.execute()]

    async def changes(self, tenant: str, *, after: int, limit: int) -> list[Change]:
        """The tenant's batches that changed after a time (Unix microseconds), that long ago first.

        Who goes on after the last one's time misses none: a batch that changes moves to the end.
        """
        found = await self._redis.zrange(
            f"{self._namespace}changes:{tenant}",
            f"({after}",
            "+inf",
            byscore=True,
            offset=0,
            num=limit,
            withscores=True,
        )
        return [Change(batch_id, int(at)) for batch_id, at in found]

    async def take_progress(self, *, limit: int) -> list[Entry]:
        """The newest progress of running batches, each once; what is taken is gone.

        Of a batch whose changes of state are still in the outbox, none.
        """
        taken = await self._scripts.run("take_progress", limit)
        return [Entry.from_text(text) for text in taken[1::2]]
