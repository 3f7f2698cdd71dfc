from redis.asyncio import Redis

from shared.state import State
from tests.batches import contents


async def test_a_key_stands_for_its_tenant(state: State) -> None:
    key = await state.keys.create("acme")

    assert await state.keys.tenant(key) == "acme"


async def test_an_unknown_key_stands_for_nobody(state: State) -> None:
    assert await state.keys.tenant("sk-none") is None


async def test_a_key_cannot_be_read_back(state: State, redis: Redis, namespace: str) -> None:
    key = await state.keys.create("acme")

    assert key not in repr(await contents(redis, namespace))
