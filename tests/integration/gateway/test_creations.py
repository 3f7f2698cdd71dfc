"""Batches that are created at once share a write, and nothing else."""

import asyncio
import json
from collections.abc import AsyncIterator

import msgspec
import pytest
from redis.asyncio import Redis

from dispatcher.reaper import Reaper
from gateway.creations import Creations
from shared.errors import TransientError
from shared.ledger.changes import save_changes
from shared.ledger.manifests import Manifest
from shared.ledger.packs import PACKS, pack_of, read_manifest
from shared.lifecycle import Status
from shared.state import State
from shared.storage import Storage
from shared.submission.accept import Accepted, accept
from shared.submission.together import accept_together
from tests.integration.gateway.conftest import Caller
from tests.manifests import a_manifest

#: So many are written on their own before the others share.
_ALONE = 2


@pytest.fixture
async def creations(state: State, storage: Storage) -> AsyncIterator[Creations]:
    creations = Creations(state, storage, patience_seconds=15)
    yield creations
    await creations.end()


async def test_batches_that_are_created_at_once_share_one_object(
    creations: Creations, state: State, storage: Storage
) -> None:
    manifests = _manifests(12)

    accepted = await asyncio.gather(*map(creations.accept, manifests))

    [key] = await storage.keys(PACKS)
    records = await state.batches.many([one.id for one in manifests])
    packs = [pack_of(record.fields) for record in records]
    assert packs == [""] * _ALONE + [key] * (12 - _ALONE)
    assert len(await storage.keys("batches/")) == _ALONE
    for manifest, one, record in zip(manifests, accepted, records, strict=True):
        pack = pack_of(record.fields)
        # Each is answered as Redis has it, and S3 has all that was asked for.
        assert one.created is not None
        assert one.created.to_openai() == record.to_openai()
        kept = await read_manifest(storage, manifest.id, pack=pack)
        assert kept == msgspec.structs.replace(manifest, pack=pack)
    entries = await state.outbox.read("submissions", limit=99, wait_seconds=0)
    messages = [json.loads(entry.fields["message"]) for entry in entries]
    told = {message["batch_id"]: message.get("pack", "") for message in messages}
    assert told == dict(zip((one.id for one in manifests), packs, strict=True))


async def test_the_shared_object_is_not_swept(
    creations: Creations, state: State, storage: Storage, redis: "Redis[str]", namespace: str
) -> None:
    manifests = _manifests(5)
    await asyncio.gather(*map(creations.accept, manifests))

    assert await redis.zrange(f"{namespace}garbage", 0, -1) == []
    await Reaper(state, storage).sweep()
    assert len(await storage.keys(PACKS)) == 1


async def test_a_batch_alone_has_an_object_of_its_own(
    creations: Creations, state: State, storage: Storage
) -> None:
    for manifest in _manifests(3):
        await creations.accept(manifest)

        assert await read_manifest(storage, manifest.id) == manifest
        assert "pack" not in (await state.batches.get(manifest.id)).fields
    assert await storage.keys(PACKS) == []


async def test_a_batch_that_redis_refuses_fails_alone(
    creations: Creations, state: State, redis: "Redis[str]", namespace: str
) -> None:
    # Whatever adds to this list fails, in the middle of the step for all of them.
    await redis.set(f"{namespace}batches:evil", "no list")
    manifests = [*_manifests(5), a_manifest("evil", tenant="evil"), *_manifests(5, "later")]

    outcomes = await asyncio.gather(*map(creations.accept, manifests), return_exceptions=True)

    errors = [one for one in outcomes if isinstance(one, BaseException)]
    assert len(errors) == 1
    assert outcomes[5] is errors[0]
    assert "WRONGTYPE" in str(errors[0])
    good = [one.id for one in manifests if one.tenant != "evil"]
    listed, _ = await state.batches.page("acme", after=None, limit=99)
    assert {one.id for one in listed} == set(good)
    assert len(listed) == len(good)
    assert {one.status for one in listed} == {Status.VALIDATING}
    assert await state.batches.many([manifests[5].id]) == []
    assert set(await state.batches.in_status(Status.VALIDATING)) == set(good)


async def test_an_outage_is_told_to_each_caller(
    creations: Creations, state: State, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: object, **__: object) -> None:
        raise TransientError("S3 is away.")

    manifests = _manifests(8)
    with monkeypatch.context() as patch:
        patch.setattr(storage, "put", away)
        outcomes = await asyncio.gather(*map(creations.accept, manifests), return_exceptions=True)

    assert [isinstance(one, Accepted) for one in outcomes[:_ALONE]] == [True] * _ALONE
    errors = outcomes[_ALONE:]
    assert [type(one) for one in errors] == [TransientError] * 6
    assert len({id(one) for one in errors}) == 6
    assert len(await state.batches.many([one.id for one in manifests])) == _ALONE
    # And nobody is stuck behind it.
    await asyncio.gather(*map(creations.accept, _manifests(8, "again")))


async def test_in_an_outage_nobody_waits_for_the_writes_of_others(
    creations: Creations, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    async def silent(key: str, *_: object, **__: object) -> None:
        asked.append(key)
        await asyncio.sleep(0.1)
        raise TransientError("S3 does not answer.")

    manifests = _manifests(100)
    with monkeypatch.context() as patch:
        patch.setattr(storage, "create", silent)
        patch.setattr(storage, "put", silent)
        outcomes = await asyncio.gather(*map(creations.accept, manifests), return_exceptions=True)

    assert {type(one) for one in outcomes} == {TransientError}
    assert len({id(one) for one in outcomes}) == 100
    # Each of the others would have had the patience of all that were asked before it.
    assert len(asked) == _ALONE
    await asyncio.gather(*map(creations.accept, manifests))


async def test_while_s3_is_slow_nobody_waits_for_ever(
    state: State, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    creations, create = Creations(state, storage, patience_seconds=0.1), storage.create

    async def slow(key: str, body: bytes) -> bool:
        await asyncio.sleep(0.3)
        return await create(key, body)

    monkeypatch.setattr(storage, "create", slow)

    manifests = _manifests(100)
    outcomes = await asyncio.gather(*map(creations.accept, manifests), return_exceptions=True)

    assert [isinstance(one, Accepted) for one in outcomes[:_ALONE]] == [True] * _ALONE
    assert {type(one) for one in outcomes[_ALONE:]} == {TransientError}
    # What was refused does not come later.
    assert len(await state.batches.many([one.id for one in manifests])) == _ALONE
    await creations.end()


async def test_during_a_rebuild_nothing_is_written_for_several(
    state: State, storage: Storage
) -> None:
    await state.restore.begin()

    outcomes = await accept_together(state, storage, _manifests(3))

    assert [type(one) for one in outcomes] == [TransientError] * 3
    assert await storage.keys(PACKS) == []


async def test_a_pack_that_is_being_swept_makes_no_batch(
    state: State, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shared.submission.together.RESERVED_SECONDS", -1)
    put = storage.put

    async def slowly(*args: object, **more: object) -> object:
        stored = await put(*args, **more)  # type: ignore[arg-type]  # as it was called
        await Reaper(state, storage).sweep()
        return stored

    monkeypatch.setattr(storage, "put", slowly)
    manifests = _manifests(3)

    outcomes = await accept_together(state, storage, manifests)

    assert [type(one) for one in outcomes] == [TransientError] * 3
    assert await state.batches.many([one.id for one in manifests]) == []
    assert await storage.keys(PACKS) == []


async def test_a_caller_who_goes_takes_nobody_along(creations: Creations, state: State) -> None:
    manifests = _manifests(8)
    calls = [asyncio.create_task(creations.accept(one)) for one in manifests]
    await asyncio.sleep(0)

    # One that is written, and one that waits.
    calls[0].cancel()
    calls[4].cancel()
    outcomes = await asyncio.gather(*calls, return_exceptions=True)

    assert [place for place, one in enumerate(outcomes) if not isinstance(one, Accepted)] == [0, 4]
    known = {one.id for one in await state.batches.many([one.id for one in manifests])}
    assert {one.id for one in manifests} - known <= {manifests[0].id, manifests[4].id}
    assert manifests[4].id not in known


async def test_a_change_of_a_batch_leaves_the_shared_object_as_it_is(
    state: State, storage: Storage
) -> None:
    manifests = _manifests(2)
    await accept_together(state, storage, manifests)
    [key] = await storage.keys(PACKS)
    before = await storage.get(key)

    await state.controls.pause(manifests[0].id)
    await save_changes(state, storage, manifests[0].id)

    changed = await read_manifest(storage, manifests[0].id, pack=key)
    assert (changed.paused, changed.is_changed, changed.pack) == (True, True, key)
    assert (await read_manifest(storage, manifests[1].id, pack=key)).paused is False
    assert await storage.get(key) == before


async def test_an_input_of_another_pack_keeps_its_place(state: State, storage: Storage) -> None:
    # As of a batch over the file of an inline message.
    manifests = [
        a_manifest(f"m-{number}", key=f"{PACKS}other/10.jsonl", etag="its own")
        for number in range(2)
    ]

    await accept_together(state, storage, manifests)

    for manifest in manifests:
        record = await state.batches.get(manifest.id)
        kept = await read_manifest(storage, manifest.id, pack=pack_of(record.fields))
        assert kept.pack != kept.key
        assert (kept.key, kept.etag) == (manifest.key, "its own")


async def test_a_repeat_by_its_record_meets_the_batch(state: State, storage: Storage) -> None:
    manifests = _manifests(2)
    await accept_together(state, storage, manifests)

    again = await accept(state, storage, manifests[0])

    assert again.is_duplicate


async def test_calls_with_a_key_share_no_object(acme: Caller, gateway_state: State) -> None:
    file = await acme.openai.files.create(file=("in.jsonl", b"{}\n"), purpose="batch")
    params = {
        "input_file_id": file.id,
        "endpoint": "/v1/embeddings",
        "completion_window": "24h",
    }

    async def create(number: int) -> str:
        headers = {"idempotency-key": f"k{number}"} if number % 2 else {}
        answer = await acme.http.post("/v1/batches", json=params, headers=headers)
        return str(answer.raise_for_status().json()["id"])

    made = await asyncio.gather(*map(create, range(40)))

    records = await gateway_state.batches.many(made)
    assert len({record.id for record in records}) == 40
    assert not any(record.fields.get("pack") for record in records[1::2])
    assert any(record.fields.get("pack") for record in records[::2])
    listed = {batch.id async for batch in await acme.openai.batches.list(limit=100)}
    assert listed == set(made)


def _manifests(count: int, name: str = "m") -> list[Manifest]:
    return [
        a_manifest(f"{name}-{number}", metadata=f'{{"n":"{number}"}}') for number in range(count)
    ]
