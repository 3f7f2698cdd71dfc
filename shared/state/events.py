"""Events outside the outbox: the history of batches, and progress, which is sent only once."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from shared.state.away import Away
from shared.state.client import Client
from shared.state.outbox import Entry
from shared.state.scripts import Scripts


class Change(NamedTuple):
    """A batch and the time of its last change of state (Unix microseconds), unique in a tenant."""

    batch_id: str
    at: int


class Marks(NamedTuple):
    """When each tenant's batches last changed (Unix microseconds), and each batch's last event."""

    changes: Mapping[str, int]
    sequences: Mapping[str, int]


class Events:
    """The noun `event` of State."""

    def __init__(self, redis: Client, scripts: Scripts, namespace: str, away: Away) -> None:
        self._redis = redis
        self._scripts = scripts
        self._namespace = namespace
        self._away = away

    async def history(self, batch_ids: list[str]) -> list[list[Entry]]:
        """Each batch's changes of state in order, in one round trip.

        They are kept until a week after the end of the batch; S3 has those of batches that have
        left Redis.
        """
        async with self._redis.pipeline(transaction=False) as pipe:
            for batch_id in batch_ids:
                pipe.lrange(f"{self._namespace}events:{batch_id}", 0, -1)
            found = dict(zip(batch_ids, await pipe.execute(), strict=True))
        # Many batches that are here have none, too.
        away = await self._away.records_among([one for one, texts in found.items() if not texts])
        found |= {one: stored.events for one, stored in away.items() if stored.seconds_left > 0}
        return [[Entry.from_text(text) for text in found[one]] for one in batch_ids]

    async def changes(self, tenant: str, *, after: int, limit: int) -> list[Change]:
        """The tenant's batches that changed after a time (Unix microseconds), earliest first.

        A caller that continues after the last one's time misses none: a batch that changes again
        moves to the end.
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

    async def marks(self, tenants: Sequence[str], batch_ids: Sequence[str]) -> Marks:
        """What changes whenever something happens, in one round trip however much is asked for."""
        async with self._redis.pipeline(transaction=False) as pipe:
            for tenant in tenants:
                key = f"{self._namespace}changes:{tenant}"
                pipe.zrange(key, 0, 0, desc=True, withscores=True)
            for batch_id in batch_ids:
                pipe.hget(f"{self._namespace}batch:{batch_id}", "sequence")
            found = await pipe.execute()
        changes = [int(newest[0][1]) if newest else 0 for newest in found[: len(tenants)]]
        sequences = [int(sequence or 0) for sequence in found[len(tenants) :]]
        return Marks(
            dict(zip(tenants, changes, strict=True)), dict(zip(batch_ids, sequences, strict=True))
        )

    async def take_progress(self, *, limit: int) -> list[Entry]:
        """Take the newest progress of running batches, each once.

        Skips batches whose changes of state are still in the outbox.
        """
        taken = await self._scripts.run("take_progress", limit)
        return [Entry.from_text(text) for text in taken[1::2]]
