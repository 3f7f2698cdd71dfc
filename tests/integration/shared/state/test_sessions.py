from redis.asyncio import Redis

from shared.state import State


async def test_a_session_is_known_by_its_token_until_it_ends(
    state: State, redis: "Redis[str]", namespace: str
) -> None:
    key = await state.keys.create("acme")
    token = await state.sessions.open(key, seconds=100)
    digest = await state.sessions.key_digest(token)

    [stored] = {name async for name in redis.scan_iter(match=f"{namespace}session:*")}
    assert digest is not None
    assert (await state.keys.get(key)).id in await redis.hkeys(f"{namespace}keys")
    assert token not in stored and 0 < await redis.ttl(stored) <= 100
    await state.sessions.close(token)
    assert await state.sessions.key_digest(token) is None
    assert await state.sessions.key_digest("made up") is None
