"""Rows that killed engines, kept so that an operator can inspect and rerun them."""

from shared.dead_rows import DeadRow, to_dead_row
from shared.errors import NotFoundError
from shared.state.client import Client

#: Rows read in one round trip.
_MANY = 100


class DeadRows:
    """The noun `dead row` of State. `Claims.commit` writes them, and only the newest are kept."""

    def __init__(self, redis: Client, namespace: str) -> None:
        self._redis = redis
        self._rows = f"{namespace}dead-rows"
        self._since = f"{namespace}dead-rows-since"

    async def all(
        self, *, tenant: str | None = None, batch_id: str | None = None, limit: int = 100
    ) -> list[DeadRow]:
        """Up to `limit` dead rows, oldest first, optionally of one tenant or batch."""
        found: list[DeadRow] = []
        first = 0
        while ids := await self._redis.zrange(self._since, first, first + _MANY - 1):
            for text in await self._redis.hmget(self._rows, ids):
                # One may have been dropped between the two calls.
                row = to_dead_row(text) if text else None
                if row and tenant in (None, row.tenant) and batch_id in (None, row.batch_id):
                    found.append(row)
                    if len(found) == limit:
                        return found
            first += len(ids)
        return found

    async def get(self, row_id: str) -> DeadRow:
        """One dead row. Raises NotFoundError."""
        text = await self._redis.hget(self._rows, row_id)
        if text is None:
            raise NotFoundError(f"No dead row found with id '{row_id}'.")
        return to_dead_row(text)

    async def drop(self, row_id: str) -> bool:
        """Remove one. Returns False if it does not exist."""
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.hdel(self._rows, row_id)
            pipe.zrem(self._since, row_id)
            gone, _ = await pipe.execute()
        return bool(gone)
