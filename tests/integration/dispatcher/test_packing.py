import asyncio
import json
from itertools import groupby
from typing import Any

import msgspec
import pytest
from redis.asyncio import Redis
from redis.asyncio.client import Monitor

from dispatcher.packing import InlineBatch, Packer
from dispatcher.reaper import Reaper
from shared.bus.messages import RejectedError
from shared.catalog import Catalog
from shared.errors import NotFoundError, TransientError
from shared.ledger.changes import save_changes
from shared.ledger.manifests import Manifest
from shared.ledger.packs import PACKS
from shared.lifecycle import Status
from shared.state import NewBatch, Quota, State
from shared.storage import Storage
from shared.submission.admission import NewBatchQuota
from shared.tasks import end
from tests.eventually import eventually
from tests.integration.dispatcher.conftest import BatchYard, a_planner, good, line, lines
from tests.manifests import every_manifest, inline

_LATE = "A pack took longer than its reservation."
_REPLY = {"to": "reply.acme.x", "message_id": "r", "correlation_id": "c"}


@pytest.fixture
def packer(state: State, storage: Storage, catalog: Catalog) -> Packer:
    """As of a dispatcher, without a planner."""
    return Packer(state, storage, quota=_quota(catalog), planner=None)


@pytest.fixture
def starter(yard: BatchYard, catalog: Catalog) -> Packer:
    return Packer(yard.state, yard.storage, quota=_quota(catalog), planner=yard.planner)


async def test_batches_that_come_together_share_one_object(
    packer: Packer, state: State, storage: Storage
) -> None:
    batches = [_batch(f"m-{number}", lines(1 + number)) for number in range(3)]

    await asyncio.gather(*map(packer.make, batches))

    [key] = await storage.keys(PACKS)
    records = await state.batches.many([batch.manifest.id for batch in batches])
    for batch, record in zip(batches, records, strict=True):
        assert (record.status, record.fields["key"]) == (Status.VALIDATING, key)
        file = await state.files.get("acme", record.fields["input_file_id"])
        start, end = record.input_range
        assert (file.key, file.start, file.end, file.owned) == (key, start, end, False)
        assert await storage.get(key, start=start, end=end, etag=file.etag) == batch.body
    assert await state.files.garbage() == []


async def test_every_manifest_is_found_with_the_place_of_its_input(
    packer: Packer, state: State, storage: Storage
) -> None:
    batches = [_batch(f"m-{number}") for number in range(3)]
    await asyncio.gather(*map(packer.make, batches))

    found = {manifest.id: manifest async for manifest in every_manifest(storage)}

    assert found.keys() == {batch.manifest.id for batch in batches}
    for record in await state.batches.many(list(found)):
        manifest = found[record.id]
        assert record.number("start") == manifest.start
        for name in ("bucket", "key", "etag", "size", "created_at", "fingerprint"):
            assert record.fields[name] == str(getattr(manifest, name))


async def test_a_good_input_starts_at_once_and_runs(starter: Packer, yard: BatchYard) -> None:
    batches = [_batch(f"m-{number}", lines(5), reply=_REPLY) for number in range(2)]

    await asyncio.gather(*map(starter.make, batches))

    for batch in batches:
        batch_id = batch.manifest.id
        record = await yard.state.batches.get(batch_id)
        assert record.status is Status.IN_PROGRESS
        assert (record.number("total"), record.number("slices_total")) == (5, 2)
        assert await yard.events(batch_id) == ["batch.accepted", "batch.in_progress"]
        await yard.run(batch_id, lambda _: good())
        await yard.finaliser.finish(batch_id)
        ended = (await yard.state.batches.get(batch_id)).to_openai()
        assert ended.status == "completed"
        results = await yard.parsed(ended.output_file_id)
        assert [result["custom_id"] for result in results] == [f"row-{row}" for row in range(5)]
    replies = await yard.state.outbox.read("replies", limit=9, wait_seconds=0.001)
    assert {json.loads(one.fields["body"])["batch"]["status"] for one in replies} == {"validating"}


async def test_what_starts_at_once_is_planned_as_by_the_planner(
    starter: Packer, yard: BatchYard
) -> None:
    body = lines(7, max_tokens=3)
    batch = _batch("m", body)

    await starter.make(batch)
    other = await yard.plan(body)

    both = await yard.state.batches.many([batch.manifest.id, other])
    names = {"model", "lane", "total", "slices_total", "queued_model", "prompt_tokens"}
    ours, theirs = ({name: one.fields[name] for name in names} for one in both)
    assert ours == theirs
    assert await yard.slices(batch.manifest.id) == await yard.slices(other)


async def test_a_faulty_input_is_left_to_the_planner(starter: Packer, yard: BatchYard) -> None:
    batch = _batch("m", line("a", model="nobody") + b"\n")
    good_one = _batch("n")

    await asyncio.gather(starter.make(good_one), starter.make(batch))
    before = await yard.state.batches.get(batch.manifest.id)
    await yard.planner.plan(batch.manifest.id)

    assert before.status is Status.VALIDATING
    after = (await yard.state.batches.get(batch.manifest.id)).to_openai()
    assert after.status == "failed"
    assert after.errors is not None
    assert [error.code for error in after.errors.data] == ["model_not_found"]


async def test_a_batch_without_room_in_its_queue_waits_for_the_planners_words(
    state: State, storage: Storage, catalog: Catalog
) -> None:
    planner = a_planner(state, storage, catalog, quota=Quota(requests=3, tokens=0))
    starter = Packer(state, storage, quota=_quota(catalog), planner=planner)
    batches = [_batch("m", lines(2)), _batch("n", lines(2))]

    await asyncio.gather(*map(starter.make, batches))
    records = await state.batches.many([batch.manifest.id for batch in batches])
    await planner.plan(records[1].id)

    assert [record.status for record in records] == [Status.IN_PROGRESS, Status.VALIDATING]
    assert (await state.batches.get(records[1].id)).status is Status.FAILED


async def test_messages_that_come_again_in_other_company_are_the_same_batches(
    packer: Packer, state: State, storage: Storage
) -> None:
    batches = [_batch(f"m-{number}", reply=_REPLY) for number in range(4)]
    await asyncio.gather(*map(packer.make, batches[:2]))
    before = [await state.batches.get(batch.manifest.id) for batch in batches[:2]]

    await asyncio.gather(*map(packer.make, batches[1:]))
    await asyncio.gather(*map(packer.make, reversed(batches)))

    ids_ = [batch.manifest.id for batch in batches]
    assert await state.batches.many(ids_[:2]) == before
    assert sorted(await state.batches.in_status(Status.VALIDATING)) == sorted(ids_)
    assert sorted([one.id async for one in every_manifest(storage)]) == sorted(ids_)
    replies = await state.outbox.read("replies", limit=99, wait_seconds=0.001)
    duplicates = [json.loads(one.fields["body"])["duplicate"] for one in replies]
    assert (duplicates.count(False), duplicates.count(True)) == (4, 5)
    assert await state.outbox.length("events") == 4
    # Packs of known batches alone are not even written.
    assert len(await storage.keys(PACKS)) == 2


async def test_of_two_bodies_under_one_id_one_wins_and_its_manifest_counts(
    state: State, storage: Storage, catalog: Catalog
) -> None:
    # Two processes, neither of which knows what the other one has in hand.
    packers = [Packer(state, storage, quota=_quota(catalog), planner=None) for _ in range(2)]
    bodies = [_batch("m", lines(number), fingerprint=f"print-{number}") for number in (1, 2)]

    ends = await asyncio.gather(
        *(packer.make(batch) for packer, batch in zip(packers, bodies, strict=True)),
        return_exceptions=True,
    )
    # It comes again, after a death.
    with pytest.raises(RejectedError):
        await packers[0].make(bodies[ends.index(None) - 1])

    [error] = [end for end in ends if end is not None]
    assert isinstance(error, RejectedError)
    assert [reason.code for reason in error.reasons] == ["idempotency_conflict"]
    record = await state.batches.get(bodies[0].manifest.id)
    assert record.fields["fingerprint"] == bodies[ends.index(None)].manifest.fingerprint
    [manifest] = [one async for one in every_manifest(storage)]
    assert manifest.fingerprint == record.fields["fingerprint"]
    assert (manifest.key, manifest.start) == (record.fields["key"], record.number("start"))


async def test_two_bodies_under_one_id_never_share_a_pack(
    packer: Packer, state: State, storage: Storage
) -> None:
    bodies = [_batch("m", lines(number), fingerprint=f"print-{number}") for number in (1, 2)]

    ends = await asyncio.gather(*map(packer.make, [*bodies, _batch("n")]), return_exceptions=True)

    assert [isinstance(end, RejectedError) for end in ends] == [False, True, False]
    record = await state.batches.get(bodies[0].manifest.id)
    assert record.fields["fingerprint"] == "print-1"
    prints = {one.id: one.fingerprint async for one in every_manifest(storage)}
    assert prints[record.id] == "print-1"


async def test_what_a_death_left_is_swept_and_what_is_in_use_stays(
    packer: Packer, state: State, storage: Storage
) -> None:
    await packer.make(_batch("m"))
    [kept] = await storage.keys(PACKS)
    # Died between the pack and the record, a day ago.
    await state.files.reserve(f"{PACKS}0-left/", seconds=-1)
    await storage.put(f"{PACKS}0-left/0.jsonl", b"left")

    await Reaper(state, storage).sweep()

    assert await storage.keys(PACKS) == [kept]


async def test_a_pack_whose_reservation_is_over_makes_nothing(state: State) -> None:
    known = _batch("known").manifest
    await state.batches.accept(
        known.id, known.fingerprint, _fields(known), input_file=None, submission=None
    )
    new = _batch("new").manifest

    outcomes = await state.batches.accept_pack(
        f"{PACKS}gone/",
        [NewBatch(one.id, one.fingerprint, _fields(one)) for one in (new, known)],
    )

    assert list(map(str, outcomes)) == [_LATE, "duplicate"]
    assert isinstance(outcomes[0], TransientError)
    with pytest.raises(NotFoundError):
        await state.batches.get(new.id)


async def test_redis_answers_others_between_the_batches_of_a_large_pack(
    state: State, redis: "Redis[str]", namespace: str
) -> None:
    manifests = [
        msgspec.structs.replace(_batch(f"m-{number}").manifest, key=f"{PACKS}p/9.jsonl")
        for number in range(40)
    ]
    new_batches = [_placed(one) for one in manifests]
    await state.files.reserve(f"{PACKS}p/", seconds=60)
    before = await redis.info("commandstats")

    outcomes = await state.batches.accept_pack(f"{PACKS}p/", new_batches)

    after = await redis.info("commandstats")
    assert outcomes == ["accepted"] * 40
    calls = after["cmdstat_evalsha"]["calls"] - before.get("cmdstat_evalsha", {"calls": 0})["calls"]
    assert calls >= 3
    assert await redis.zrange(f"{namespace}garbage", 0, -1) == [f"{PACKS}p/9.jsonl"]
    # Asked for again from the start, each step meets its own.
    assert await state.batches.accept_pack(f"{PACKS}p/", new_batches) == ["duplicate"] * 40


async def test_packs_are_created_one_after_the_other(starter: Packer, redis: "Redis[str]") -> None:
    """As steps in turn, they would make everybody else wait for both."""
    steps: list[str] = []

    async def listen(monitor: Monitor) -> None:
        async for heard in monitor.listen():
            # The script, the number of keys, the namespace, and the prefix.
            command = heard["command"].split(" ", 5)
            if command[0] == "EVALSHA" and command[4].startswith(PACKS):
                steps.append(command[4])

    async with redis.monitor() as monitor:
        listening = asyncio.create_task(listen(monitor))
        await asyncio.gather(*(starter.make(_batch(f"m-{number}")) for number in range(128)))
        await eventually(lambda: len(steps) >= 32)
        await end(listening)

    assert len([prefix for prefix, _ in groupby(steps)]) == len(set(steps)) == 2


async def test_a_later_step_needs_a_batch_that_has_kept_the_pack(state: State) -> None:
    """As after a death between two steps, when another pack brings the same batches."""
    manifests = [_batch(f"m-{number}").manifest for number in range(32)]
    at = {
        name: [msgspec.structs.replace(one, key=f"{PACKS}{name}/9.jsonl") for one in manifests]
        for name in ("first", "second", "gone")
    }
    batches = {name: list(map(_placed, found)) for name, found in at.items()}
    for name in ("first", "second"):
        await state.files.reserve(f"{PACKS}{name}/", seconds=60)
    await state.batches.accept_pack(f"{PACKS}first/", batches["first"][:16])

    again = await state.batches.accept_pack(f"{PACKS}gone/", batches["gone"])
    outcomes = await state.batches.accept_pack(f"{PACKS}second/", batches["second"])

    assert list(map(str, again)) == ["duplicate"] * 16 + [_LATE] * 16
    assert outcomes == ["duplicate"] * 16 + ["accepted"] * 16
    found = await state.batches.many([one.id for one in manifests])
    assert [one.fields["key"] for one in found] == [
        *[f"{PACKS}first/9.jsonl"] * 16,
        *[f"{PACKS}second/9.jsonl"] * 16,
    ]
    assert await state.files.garbage() == []


async def test_a_lost_answer_is_asked_for_again_without_harm(state: State) -> None:
    manifest = _batch("m").manifest
    new_batches = [NewBatch(manifest.id, manifest.fingerprint, _fields(manifest))]
    await state.files.reserve(f"{PACKS}p/", seconds=60)

    outcomes = [await state.batches.accept_pack(f"{PACKS}p/", new_batches) for _ in range(2)]

    assert outcomes == [["accepted"], ["duplicate"]]
    assert await state.files.garbage() == []
    assert await state.outbox.length("events") == 1


async def test_what_is_refused_leaves_nothing(
    state: State, storage: Storage, catalog: Catalog
) -> None:
    quota = NewBatchQuota(catalog, batches_per_hour=1, requests=1000, tokens=100_000)
    packer = Packer(state, storage, quota=quota, planner=None)
    await packer.make(_batch("first"))

    with pytest.raises(RejectedError, match="batches per hour"):
        await packer.make(_batch("second"))

    assert len(await storage.keys(PACKS)) == 1
    await Reaper(state, storage).sweep()
    assert [one.message_id async for one in every_manifest(storage)] == ["first"]


async def test_one_that_breaks_us_takes_no_other_along(packer: Packer, state: State) -> None:
    # No JSON can carry it; no message can bring it either.
    broken = _batch("broken", metadata="\ud800")
    others = [_batch(f"m-{number}") for number in range(3)]

    ends = await asyncio.gather(
        *map(packer.make, [*others[:1], broken, *others[1:]]), return_exceptions=True
    )

    assert [type(end) for end in ends] == [type(None), UnicodeEncodeError, type(None), type(None)]
    made = await state.batches.in_status(Status.VALIDATING)
    assert sorted(made) == sorted(batch.manifest.id for batch in others)


async def test_a_change_of_a_packed_batch_is_kept_in_a_manifest_of_its_own(
    packer: Packer, state: State, storage: Storage
) -> None:
    batches = [_batch("m"), _batch("n")]
    await asyncio.gather(*map(packer.make, batches))
    batch_id = batches[0].manifest.id
    await state.controls.amend(batch_id, priority=9)

    await save_changes(state, storage, batch_id)

    found = {manifest.id: manifest async for manifest in every_manifest(storage)}
    record = await state.batches.get(batch_id)
    assert found.keys() == {batch.manifest.id for batch in batches}
    assert (found[batch_id].priority, found[batch_id].etag) == (9, record.fields["etag"])


def _quota(catalog: Catalog) -> NewBatchQuota:
    return NewBatchQuota(catalog, batches_per_hour=1000, requests=1000, tokens=100_000)


def _batch(
    message_id: str,
    body: bytes = lines(1),
    *,
    reply: dict[str, str] | None = None,
    **changes: Any,
) -> InlineBatch:
    return inline(message_id, body, reply=reply, correlation_id=message_id, **changes)


def _placed(manifest: Manifest) -> NewBatch:
    fields = {**_fields(manifest), "key": manifest.key}
    return NewBatch(manifest.id, manifest.fingerprint, fields)


def _fields(manifest: Manifest) -> dict[str, str | int]:
    return {
        "id": manifest.id,
        "tenant": "acme",
        "input_file_id": manifest.input_file_id,
        "created_at": manifest.created_at,
        "expires_at": manifest.expires_at,
    }
