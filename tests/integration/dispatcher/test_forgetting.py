"""All that is known of a batch is forgotten long after its end."""

import asyncio
from typing import Any

import pytest
from redis.asyncio import Redis

from dispatcher.packing import Packer
from dispatcher.reaper import Reaper
from shared.catalog import Catalog
from shared.errors import NotFoundError, TransientError
from shared.ledger.packs import PACKS
from shared.state import State
from shared.storage import PROBES
from shared.submission.admission import NewBatchQuota
from tests.integration.dispatcher.conftest import BatchYard, good, lines
from tests.manifests import inline

_DAYS = 86_400


@pytest.fixture
def reaper(yard: BatchYard) -> Reaper:
    """To which whatever has ended ended long ago."""
    return Reaper(yard.state, yard.storage, batch_seconds=-1)


@pytest.fixture
def packer(yard: BatchYard, catalog: Catalog) -> Packer:
    quota = NewBatchQuota(catalog, batches_per_hour=99, requests=999, tokens=999_999)
    return Packer(yard.state, yard.storage, quota=quota, planner=yard.planner)


async def test_a_batch_is_known_for_its_time_and_for_as_long_as_its_files(
    reaper: Reaper, yard: BatchYard, redis: "Redis[str]", namespace: str
) -> None:
    batch_id, live = await yard.plan(lines(1)), await yard.plan(lines(1))
    await _ended(yard, batch_id)
    record = await yard.state.batches.get(batch_id)

    await Reaper(yard.state, yard.storage, batch_seconds=3600).forget()
    await reaper.forget()
    assert await yard.state.batches.exists(batch_id)
    await yard.state.files.delete("acme", record.fields["output_file_id"])
    # It is looked at once a day.
    await reaper.forget()
    assert await yard.state.batches.exists(batch_id)
    await _let_a_day_pass(redis, namespace)
    await reaper.forget()

    with pytest.raises(NotFoundError):
        await yard.state.batches.get(batch_id)
    for changed_after in (None, 0):
        page, _ = await yard.state.batches.page(
            "acme", after=None, limit=9, changed_after=changed_after
        )
        assert [one.id for one in page] == [live]
    assert await yard.storage.keys(f"batches/{batch_id}/") == []


async def test_batches_of_one_pack_go_together(
    reaper: Reaper, packer: Packer, yard: BatchYard, redis: "Redis[str]", namespace: str
) -> None:
    first, second = await _packed(packer, 2)
    await _ended(yard, first)
    await _let_files_go(yard, first, second)
    await reaper.forget()
    assert await yard.state.batches.exists(first)

    await _ended(yard, second)
    await _let_files_go(yard, second)
    await _let_a_day_pass(redis, namespace)
    # Its inputs are still there, and with them what a rebuild reads.
    await reaper.forget()
    assert await yard.state.batches.exists(first)
    await _sweep_pack(reaper, redis, namespace)
    await _let_a_day_pass(redis, namespace)
    await reaper.forget()

    assert await yard.state.batches.many([first, second]) == []
    assert await yard.storage.keys(PACKS) == []
    assert await yard.storage.keys("batches/") == []


async def test_whoever_dies_over_it_is_followed(
    reaper: Reaper,
    packer: Packer,
    yard: BatchYard,
    redis: "Redis[str]",
    namespace: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    packed, own = await _packed(packer, 3), await yard.plan(lines(1))
    for batch_id in (own, *packed):
        await _ended(yard, batch_id)
    await _let_files_go(yard, own, *packed)
    await _sweep_pack(reaper, redis, namespace)

    async def gone(*_: object) -> None:
        raise TransientError("Redis is away.")

    for method in ("remove", "keys"):
        with monkeypatch.context() as patch, pytest.raises(TransientError):
            patch.setattr(yard.storage, method, gone)
            await reaper.forget()
    with monkeypatch.context() as patch:
        patch.setattr(yard.state.batches, "forget", _fails_with_any(yard.state, gone))
        for _ in range(2):
            with pytest.raises(TransientError):
                await reaper.forget()
    await reaper.forget()

    assert await yard.state.batches.many([own, *packed]) == []
    left = [*await yard.storage.keys("files/"), *await yard.storage.keys(PROBES)]
    assert await yard.storage.keys("") == left


def _fails_with_any(state: State, gone: Any) -> Any:
    forget = state.batches.forget

    async def some(batch_ids: list[str]) -> None:
        await (gone() if batch_ids else forget(batch_ids))

    return some


async def _ended(yard: BatchYard, batch_id: str) -> None:
    await yard.run(batch_id, lambda _: good())
    await yard.finaliser.finish(batch_id)


async def _let_files_go(yard: BatchYard, *batch_ids: str) -> None:
    for record in await yard.state.batches.many(list(batch_ids)):
        for file in await yard.state.files.many(record.file_ids):
            await yard.state.files.delete(file.tenant, file.id)


async def _let_a_day_pass(redis: "Redis[str]", namespace: str) -> None:
    for batch_id in await redis.zrange(f"{namespace}endings", 0, -1):
        await redis.zincrby(f"{namespace}endings", -_DAYS, batch_id)


async def _sweep_pack(reaper: Reaper, redis: "Redis[str]", namespace: str) -> None:
    for member in await redis.zrange(f"{namespace}garbage", 0, -1):
        await redis.zadd(f"{namespace}garbage", {member: 1})
    await reaper.sweep()


async def _packed(packer: Packer, number: int) -> list[str]:
    made = [inline(f"m-{place}", lines(1), file_seconds=3600) for place in range(number)]
    await asyncio.gather(*map(packer.make, made))
    return [one.manifest.id for one in made]
