"""Result files that an operator wants made again, and what became of each wish."""

from shared.state.client import Client


class Remakes:
    """The noun `remake` of State: batch ids, each with its outcome once it has one."""

    def __init__(self, redis: Client, namespace: str) -> None:
        self._redis = redis
        self._key = f"{namespace}remakes"
        self._bell = f"{namespace}bell:dispatcher"

    async def ask(self, batch_id: str) -> None:
        """Ask the leading dispatcher to make the batch's result files again."""
        await self._redis.hset(self._key, batch_id, "")
        await self._redis.publish(self._bell, "1")

    async def waiting(self) -> list[str]:
        """The batches whose files are still to be made again."""
        wishes: dict[str, str] = await self._redis.hgetall(self._key)
        return [batch_id for batch_id, outcome in wishes.items() if not outcome]

    async def settle(self, batch_id: str, outcome: str) -> None:
        """Note what became of it, unless nobody asks any more."""
        if await self._redis.hexists(self._key, batch_id):
            await self._redis.hset(self._key, batch_id, outcome)

    async def outcome(self, batch_id: str) -> str:
        """What became of it; empty as long as it waits."""
        return await self._redis.hget(self._key, batch_id) or ""

    async def forget(self, batch_id: str) -> None:
        """Ask no more."""
        await self._redis.hdel(self._key, batch_id)
