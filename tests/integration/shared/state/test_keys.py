import asyncio
import time
from datetime import UTC, datetime, timedelta

import pytest
from redis.asyncio import Redis

from cli import servers
from shared import ids
from shared.errors import NotFoundError
from shared.scopes import DEFAULT_SCOPES, Scope
from shared.state import Admission, Expired, Rate, State
from tests.batches import contents, validating

EVERY = Rate("requests", 1000, 60)


async def test_a_key_stands_for_its_tenant(state: State) -> None:
    key = await state.keys.create("acme")

    admission = await state.keys.admit(key, [EVERY])

    assert await state.keys.tenant(key) == "acme"
    assert isinstance(admission, Admission)
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
    assert (record.name, record.last_used, record.revoked_at) == ("nightly", None, None)
    assert (record.expires_at, record.scopes) == (None, DEFAULT_SCOPES)
    assert record.prefix == key[:17]
    assert {one.prefix for one in listed} == {record.prefix, ""}
    assert {one.tenant for one in await state.keys.all()} == {"acme", "globex"}
    with pytest.raises(NotFoundError):
        await state.keys.get("sk-none")


async def test_the_day_of_a_keys_last_use_is_written_once_a_day(
    redis_server: servers.Redis,
) -> None:
    state = State(redis_server.url)
    redis: Redis[str] = Redis.from_url(redis_server.url, decode_responses=True)
    key = await state.keys.create("acme")
    field = f"{{batchyard}}:key:{ids.api_key_digest(key)}"
    # What counts the calls of a quick rate is soon over, and Redis writes that down, too.
    lasting = Rate("requests", 10, 86_400)

    await state.keys.admit(key, [lasting])
    first = (await state.keys.get(key)).last_used
    size = (await redis.info("persistence"))["aof_current_size"]
    for _ in range(3):
        await state.keys.admit(key, [lasting])
    size_after = (await redis.info("persistence"))["aof_current_size"]
    await redis.hset(field, "used_day", 20_000)
    long_ago = (await state.keys.get(key)).last_used
    await state.keys.admit(key, [lasting])
    again = (await state.keys.get(key)).last_used
    await redis.aclose()
    await state.close()

    today = datetime.now(UTC).date()
    assert first in {today.isoformat(), (today - timedelta(days=1)).isoformat()}
    assert size_after == size
    assert long_ago == "2024-10-04"
    assert again is not None
    assert again >= str(first)


async def test_a_key_is_refused_from_the_second_on_in_which_it_expires(state: State) -> None:
    now = int(time.time())
    past = await state.keys.add("acme", "sk-past", expires_at=now - 1)
    await state.keys.add("acme", "sk-future", expires_at=now + 3600)

    expired = await state.keys.admit("sk-past", [EVERY])
    valid = await state.keys.admit("sk-future", [EVERY])
    await state.keys.change(past, expires_at=None, scopes=DEFAULT_SCOPES)
    again = await state.keys.admit("sk-past", [EVERY])

    assert expired == Expired(now - 1)
    assert isinstance(valid, Admission)
    assert isinstance(again, Admission)
    assert (await state.keys.find(past)).expires_at is None


async def test_a_key_has_the_scopes_that_it_was_given_last(state: State) -> None:
    key_id = await state.keys.add("acme", "sk-few", scopes=(Scope.READ,))

    before = await state.keys.admit("sk-few", [EVERY])
    await state.keys.change(key_id, expires_at=None, scopes=(Scope.READ, Scope.SUBMIT))
    after = await state.keys.admit("sk-few", [EVERY])

    assert isinstance(before, Admission)
    assert isinstance(after, Admission)
    assert (before.key_id, before.scopes) == (key_id, (Scope.READ,))
    assert after.scopes == (Scope.READ, Scope.SUBMIT)
    with pytest.raises(NotFoundError, match="key_none"):
        await state.keys.change("key_none", expires_at=None, scopes=DEFAULT_SCOPES)


async def test_a_key_from_before_there_were_scopes_has_them_all(
    state: State, redis: "Redis[str]", namespace: str
) -> None:
    key_id = await state.keys.add("acme", "sk-old")
    await redis.hdel(f"{namespace}key:{ids.api_key_digest('sk-old')}", "scopes")

    assert (await state.keys.find(key_id)).scopes == DEFAULT_SCOPES


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

    assert isinstance(found, Admission)
    assert isinstance(missed, Admission)
    # The caller checks whose it is.
    assert (found.tenant, found.batch) == ("acme", await state.batches.get(batch_id))
    assert missed.batch is None
    assert [isinstance(one, Admission) and one.batch is not None for one in admissions] == [
        True,
        False,
    ]
