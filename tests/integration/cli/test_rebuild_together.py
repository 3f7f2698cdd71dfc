"""Batches whose manifests share one object are made again, changed and forgotten like others."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from cli import servers
from cli.rebuild.rebuild import Rebuild
from dispatcher.reaper import Reaper
from shared.ledger.changes import save_changes
from shared.ledger.commits import cancel
from shared.ledger.manifests import Manifest
from shared.ledger.packs import PACKS, PackedBatch, pack, without_inputs
from shared.retention import RESERVED_SECONDS
from shared.state import State
from shared.storage import Storage
from tests.integration.cli.yards import TENANT, Yards, empty, yards_in
from tests.integration.dispatcher.conftest import good


@pytest.fixture
def state(own_state: State) -> State:
    """On a Redis that the test may empty."""
    return own_state


@pytest.fixture
def yards(state: State, storage: Storage, tmp_path: Path) -> Yards:
    return yards_in(tmp_path, state, storage)


async def test_they_are_made_again_however_far_they_were(
    yards: Yards, redis_server: servers.Redis
) -> None:
    names = ("waiting", "running", "paused", "cancelled", "ended")
    ids = dict(zip(names, await yards.submit_together(*names), strict=True))
    for name in names[1:]:
        await yards.yard.planner.plan(ids[name])
    await yards.commit_some(ids["running"], 1)
    await yards.state.controls.pause(ids["paused"])
    await save_changes(yards.state, yards.storage, ids["paused"])
    await cancel(yards.state, yards.storage, ids["cancelled"])
    await _end(yards, ids["ended"])
    before = {one: await yards.record(one) for one in ids.values()}
    [key] = await yards.storage.keys(PACKS)
    await empty(redis_server)

    rebuild = await _rebuild(yards)

    assert {one: await yards.record(one) for one in ids.values()} == before
    assert {record["pack"] for record in before.values()} == {key}
    assert rebuild.problems == []
    # And again, from a Redis that knows them.
    await _rebuild(yards)
    assert {one: await yards.record(one) for one in ids.values()} == before
    assert await _garbage(redis_server, key) == []


async def test_what_a_death_before_the_record_left_is_made_and_kept(
    yards: Yards, redis_server: servers.Redis
) -> None:
    """As with a manifest of its own: its caller got no answer, and S3 says that it was asked."""
    manifests = [await yards.asked(f"m-{number}", 9) for number in range(2)]
    key = await _write_pack(yards, manifests)
    assert await yards.state.batches.many([one.id for one in manifests]) == []

    await _rebuild(yards)

    # Its object is no longer what a dead process left.
    assert await _garbage(redis_server, key) == []
    before = [await yards.record(one.id) for one in manifests]
    assert [record["pack"] for record in before] == [key, key]
    await empty(redis_server)
    await _rebuild(yards)
    assert [await yards.record(one.id) for one in manifests] == before


async def test_without_a_rebuild_it_is_swept_and_no_batch_comes_of_it(
    yards: Yards, redis_server: servers.Redis
) -> None:
    manifests = [await yards.asked(f"m-{number}", 9) for number in range(2)]
    key = await _write_pack(yards, manifests, seconds=-1)

    await Reaper(yards.state, yards.storage).sweep()

    assert await yards.storage.keys(PACKS) == []
    await _rebuild(yards)
    assert await yards.state.batches.many([one.id for one in manifests]) == []
    assert await _garbage(redis_server, key) == []


async def test_they_are_forgotten_together(yards: Yards, redis_server: servers.Redis) -> None:
    reaper = Reaper(yards.state, yards.storage, batch_seconds=-1)
    first, second = await yards.submit_together("first", "second")
    for batch_id in (first, second):
        await yards.yard.planner.plan(batch_id)
    await _end(yards, first)
    await _let_files_go(yards, first)
    await reaper.forget()
    # The other one has its manifest in the same object.
    assert await yards.state.batches.exists(first)
    assert len(await yards.storage.keys(PACKS)) == 1

    await _end(yards, second)
    await _let_files_go(yards, second)
    await _let_days_pass(redis_server)
    await reaper.forget()

    assert await yards.state.batches.many([first, second]) == []
    assert await yards.storage.keys(PACKS) == []
    assert await yards.storage.keys("batches/") == []
    await _rebuild(yards)
    assert await yards.state.batches.many([first, second]) == []


async def _write_pack(
    yards: Yards, manifests: list[Manifest], *, seconds: int = RESERVED_SECONDS
) -> str:
    """All that a process has done that dies between the object and the records."""
    prefix = f"{PACKS}0-left/"
    key = without_inputs(prefix)
    await yards.state.files.reserve(prefix, seconds=seconds)
    lines = [PackedBatch(_with_pack(one, key)) for one in manifests]
    await yards.storage.put(key, pack((), lines))
    return key


def _with_pack(manifest: Manifest, key: str) -> Manifest:
    fields: dict[str, Any] = {name: getattr(manifest, name) for name in manifest.__struct_fields__}
    return Manifest(**{**fields, "pack": key})


async def _rebuild(yards: Yards) -> Rebuild:
    rebuild = Rebuild(yards.state, yards.storage, progress=lambda *_: None)
    await rebuild.run()
    return rebuild


async def _end(yards: Yards, batch_id: str) -> None:
    await yards.yard.run(batch_id, lambda row: good(f"{row}"))
    await yards.yard.finaliser.finish(batch_id)


async def _let_files_go(yards: Yards, batch_id: str) -> None:
    record = await yards.state.batches.get(batch_id)
    for file in await yards.state.files.many(record.file_ids):
        await yards.storage.remove([file.record_key])
        await yards.state.files.delete(TENANT, file.id)


async def _let_days_pass(redis_server: servers.Redis) -> None:
    redis: Redis[str] = Redis.from_url(redis_server.url, decode_responses=True)
    [key] = {key async for key in redis.scan_iter(match="*endings")}
    members = await redis.zrange(key, 0, -1)
    await asyncio.gather(*(redis.zincrby(key, -200_000, one) for one in members))
    await redis.aclose()


async def _garbage(redis_server: servers.Redis, key: str) -> list[str]:
    """What is to be swept of the pack."""
    redis: Redis[str] = Redis.from_url(redis_server.url, decode_responses=True)
    found = [
        member
        async for name in redis.scan_iter(match="*garbage")
        for member in await redis.zrange(name, 0, -1)
        if member == key or key.startswith(member)
    ]
    await redis.aclose()
    return found
