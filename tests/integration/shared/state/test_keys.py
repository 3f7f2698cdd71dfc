import asyncio

import pytest
from redis.asyncio import Redis

from shared import ids
from shared.errors import NotFoundError
from shared.state import Rate, State
from tests.batches import contents, validating

EVERY = Rate("requests", 1000, 60)


async def test_a_key_stands_for_its_tenant(state: State) -> None:
    key = await state.keys.create("acme")

    admission = await state.keys.admit(key, [EVERY])

    assert await state.keys.tenant(key) == "acme"
    assert admission is not None
    assert admission.tenant == "acme"


async def test_an_unknown_key_stands_for_nobody(state: State, redis: Redis, namespace: str) -> None:
    assert await state.keys.tenant("sk-none") is None
    assert await state.keys.admit("sk-none", [EVERY]) is None
    assert await contents(redis, namespace) == {}


async def test_a_key_cannot_be_read_back(state: State, redis: Redis, namespace: str) -> None:
    key = await state.keys.create("acme", name="nightly")

    assert key not in repr(await contents(redis, namespace))
    assert key not in repr(await state.keys.all())


async def test_a_revoked_key_is_refused_at_once(state: State) -> None:
    key, other = await state.keys.create("acme"), await state.keys.create("acme")
    record = await state.keys.get(key)
    assert await state.keys.admit(key, [EVERY]) is not None

    is_first = await state.keys.revoke(record.id)

    assert is_first
    assert not await state.keys.revoke(record.id)
    assert await state.keys.admit(key, [EVERY]) is None
    assert await state.keys.tenant(key) is None
    assert await state.keys.tenant(other) == "acme"


async def test_a_revoked_key_that_is_added_again_stays_revoked(state: State) -> None:
    key_id = await state.keys.add("acme", "sk-of-somebodys-own-making")
    await state.keys.revoke(key_id)

    assert await state.keys.add("globex", "sk-of-somebodys-own-making") == key_id

    [record] = await state.keys.all()
    assert await state.keys.tenant("sk-of-somebodys-own-making") is None
    assert record.tenant == "acme"
    assert record.revoked_at is not None


async def test_an_unknown_key_cannot_be_revoked(state: State) -> None:
    with pytest.raises(NotFoundError, match="key_none"):
        await state.keys.revoke("key_none")


async def test_keys_are_listed_with_what_is_known_of_them(state: State) -> None:
    key = await state.keys.create("acme", name="nightly")
    await state.keys.create("globex")
    short = await state.keys.add("acme", "sk-short")
    record = await state.keys.get(key)

    listed = await state.keys.all("acme")

    assert {one.id for one in listed} == {record.id, short}
    assert record in listed
    assert (record.name, record.used_at, record.revoked_at) == ("nightly", None, None)
    assert record.prefix == key[:17]
    assert {one.prefix for one in listed} == {record.prefix, ""}
    assert {one.tenant for one in await state.keys.all()} == {"acme", "globex"}
    with pytest.raises(NotFoundError):
        await state.keys.get("sk-none")


async def test_the_last_use_of_a_key_is_noted_to_ten_minutes(
    state: State, redis: Redis, namespace: str
) -> None:
    key = await state.keys.create("acme")
    field = f"{namespace}key:{ids.api_key_digest(key)}"

    await state.keys.admit(key, [EVERY])
    first = (await state.keys.get(key)).used_at
    assert first is not None
    await redis.hset(field, "used_at", first - 300)
    await state.keys.admit(key, [EVERY])
    second = (await state.keys.get(key)).used_at
    await redis.hset(field, "used_at", first - 601)
    await state.keys.admit(key, [EVERY])

    assert second == first - 300
    assert ((await state.keys.get(key)).used_at or 0) >= first


async def test_of_a_call_at_once_with_a_revocation_no_key_is_left(
    state: State, redis: Redis, namespace: str
) -> None:
    key = await state.keys.create("acme")
    key_id = (await state.keys.get(key)).id

    await asyncio.gather(
        *(state.keys.admit(key, [EVERY]) for _ in range(20)), state.keys.revoke(key_id)
    )

    assert await state.keys.admit(key, [EVERY]) is None


async def test_a_batch_is_read_on_the_way(state: State) -> None:
    key, batch_id = await state.keys.create("acme"), await validating(state, tenant="globex")
    once = Rate("once", 1, 60)

    found = await state.keys.admit(key, [EVERY], batch_id=batch_id)
    missed = await state.keys.admit(key, [EVERY], batch_id="batch_none")
    admissions = [await state.keys.admit(key, [once], batch_id=batch_id) for _ in range(2)]

    assert found is not None
    assert missed is not None
    # The caller checks whose it is.
    assert (found.tenant, found.batch) == ("acme", await state.batches.get(batch_id))
    assert missed.batch is None
    assert [one is not None and one.batch is not None for one in admissions] == [True, False]
