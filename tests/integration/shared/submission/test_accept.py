import asyncio
import json

import msgspec
import pytest

from shared.errors import ConflictError, NotFoundError
from shared.ledger.manifests import manifest_key
from shared.ledger.packs import read_manifest
from shared.lifecycle import Status
from shared.state import State
from shared.storage import Storage
from shared.submission.accept import accept
from tests.manifests import a_manifest


async def test_a_submission_makes_manifest_and_record(state: State, storage: Storage) -> None:
    manifest = a_manifest(metadata='{"a":"b"}', correlation_id="order-17")

    accepted = await accept(state, storage, manifest)

    record = await state.batches.get(manifest.id)
    assert (accepted.batch_id, accepted.is_duplicate) == (manifest.id, False)
    assert accepted.created is not None
    assert accepted.created.to_openai() == record.to_openai()
    assert await read_manifest(storage, manifest.id) == manifest
    assert record.status is Status.VALIDATING
    assert record.fields["correlation_id"] == "order-17"
    assert record.to_openai().metadata == {"a": "b"}
    assert "reply_to" not in record.fields


async def test_a_batch_by_http_is_announced_to_the_dispatcher(
    state: State, storage: Storage
) -> None:
    await accept(state, storage, a_manifest(door="http"))

    [entry] = await state.outbox.read("submissions", limit=9, wait_seconds=0)
    assert json.loads(entry.fields["message"]) == {
        "type": "batch.ready.v1",
        "tenant": "acme",
        "batch_id": a_manifest().id,
    }


async def test_a_batch_by_the_bus_is_not_sent_again(state: State, storage: Storage) -> None:
    await accept(state, storage, a_manifest(door="bus"))

    assert await state.outbox.length("submissions") == 0


async def test_an_input_of_the_tenants_own_gets_a_file_record(
    state: State, storage: Storage
) -> None:
    manifest = a_manifest(is_foreign=True, key="acme/in.jsonl")

    await accept(state, storage, manifest)

    file = await state.files.get("acme", manifest.input_file_id)
    assert (file.bucket, file.key, file.etag) == (manifest.bucket, manifest.key, manifest.etag)
    assert file.filename == "in.jsonl"
    assert not file.owned


async def test_a_second_submission_meets_the_first(state: State, storage: Storage) -> None:
    await accept(state, storage, a_manifest(created_at=1))

    again = await accept(state, storage, a_manifest(created_at=2, expires_at=3))

    record = await state.batches.get(again.batch_id)
    assert again.is_duplicate
    assert record.number("created_at") == 1
    assert await state.outbox.length("submissions") == 1


async def test_of_many_submissions_at_once_one_makes_the_batch(
    state: State, storage: Storage
) -> None:
    manifests = [a_manifest(created_at=number) for number in range(16)]

    accepted = await asyncio.gather(*(accept(state, storage, manifest) for manifest in manifests))

    kept = await read_manifest(storage, a_manifest().id)
    record = await state.batches.get(a_manifest().id)
    assert sorted(one.is_duplicate for one in accepted) == [False] + [True] * 15
    assert kept.created_at == record.number("created_at")
    assert await state.outbox.length("submissions") == 1
    assert await state.outbox.length("events") == 1


async def test_another_body_under_the_same_key_is_a_conflict(
    state: State, storage: Storage
) -> None:
    await accept(state, storage, a_manifest())

    with pytest.raises(ConflictError):
        await accept(state, storage, a_manifest(fingerprint="other", endpoint="/v1/embeddings"))

    assert (await state.batches.get(a_manifest().id)).fields["endpoint"] == a_manifest().endpoint


async def test_of_two_bodies_at_once_one_wins_and_the_other_is_a_conflict(
    state: State, storage: Storage
) -> None:
    manifests = [a_manifest(fingerprint=word, endpoint=f"/{word}") for word in ("a", "b")]

    outcomes = await asyncio.gather(
        *(accept(state, storage, manifest) for manifest in manifests), return_exceptions=True
    )

    [loser] = [index for index, outcome in enumerate(outcomes) if isinstance(outcome, Exception)]
    record = await state.batches.get(a_manifest().id)
    assert isinstance(outcomes[loser], ConflictError)
    assert record.fields["endpoint"] == manifests[1 - loser].endpoint


async def test_the_same_key_of_another_tenant_is_another_batch(
    state: State, storage: Storage
) -> None:
    first = await accept(state, storage, a_manifest())
    second = await accept(state, storage, a_manifest(tenant="globex"))

    assert first.batch_id != second.batch_id
    assert not second.is_duplicate


async def test_a_repeat_after_a_crash_between_manifest_and_record_makes_the_record(
    state: State, storage: Storage
) -> None:
    first = a_manifest(created_at=1)
    await storage.create(manifest_key(first.id), msgspec.json.encode(first))
    with pytest.raises(NotFoundError):
        await state.batches.get(first.id)

    accepted = await accept(state, storage, a_manifest(created_at=2))

    assert not accepted.is_duplicate
    assert (await state.batches.get(first.id)).number("created_at") == 1
    assert await state.outbox.length("submissions") == 1


async def test_a_conflict_with_a_manifest_without_a_record_makes_no_record(
    state: State, storage: Storage
) -> None:
    first = a_manifest()
    await storage.create(manifest_key(first.id), msgspec.json.encode(first))

    with pytest.raises(ConflictError):
        await accept(state, storage, a_manifest(fingerprint="other"))

    with pytest.raises(NotFoundError):
        await state.batches.get(first.id)
