"""Ended batches leave Redis for S3, and are found there whatever is asked of them."""

import json
from typing import Any

import msgspec
import pytest
from redis.asyncio import Redis

from dispatcher.packing import Packer
from dispatcher.reaper import Reaper
from shared.bus.messages import RejectedError
from shared.catalog import Catalog
from shared.errors import InvalidTransitionError, NotFoundError, TransientError
from shared.ledger.batch_records import (
    BatchRecords,
    create_record,
    read_batch_record,
    record_key,
)
from shared.ledger.changes import save_changes
from shared.ledger.commits import Commit, cancel, create_commit
from shared.lifecycle import Event, Status
from shared.state import State
from shared.submission.accept import accept_known
from shared.submission.admission import NewBatchQuota
from tests.batches import validating
from tests.chaos.points import LEAVING_POINTS
from tests.integration.dispatcher.conftest import BatchYard, bad, good, lines
from tests.manifests import inline

#: What stays of a batch that has left, besides what a day after its end has no more.
PLACES = {"batches:acme", "changes:acme", "endings"}


@pytest.fixture
def reaper(yard: BatchYard) -> Reaper:
    """To which whatever has ended ended minutes ago."""
    return Reaper(yard.state, yard.storage, ended_seconds=-1)


@pytest.fixture
async def ended(yard: BatchYard) -> str:
    """A batch with a result and an error."""
    batch_id = await yard.plan(lines(2), metadata='{"who": "me"}')
    await yard.run(batch_id, lambda row: bad() if row else good())
    await yard.finaliser.finish(batch_id)
    return batch_id


async def test_a_batch_is_read_as_it_was_after_it_has_left(
    reaper: Reaper, yard: BatchYard, ended: str, redis: "Redis[str]", namespace: str
) -> None:
    state = yard.state
    before = await _told(state, ended)

    await reaper.let_leave()

    assert not await redis.exists(f"{namespace}batch:{ended}", f"{namespace}events:{ended}")
    assert await _told(state, ended) == before
    assert await state.batches.exists(ended)
    # Reading it has brought nothing back.
    assert not await redis.exists(f"{namespace}batch:{ended}")
    assert await redis.zcard(f"{namespace}leaving") == 0


async def test_a_batch_stays_for_its_minutes(
    yard: BatchYard, ended: str, redis: "Redis[str]", namespace: str
) -> None:
    live = await yard.plan(lines(1))

    await Reaper(yard.state, yard.storage, ended_seconds=60).let_leave()
    assert await redis.exists(f"{namespace}batch:{ended}")
    await Reaper(yard.state, yard.storage, ended_seconds=-1).let_leave()

    assert not await redis.exists(f"{namespace}batch:{ended}")
    assert await redis.exists(f"{namespace}batch:{live}")


async def test_pages_have_batches_here_and_away_in_order(reaper: Reaper, yard: BatchYard) -> None:
    made = []
    for _ in range(3):
        made.append(await yard.plan(lines(1)))
        await yard.run(made[-1], lambda _: good())
        await yard.finaliser.finish(made[-1])
    await reaper.let_leave()
    made.append(await yard.plan(lines(1)))

    for changed_after in (None, 0):
        first, more = await yard.state.batches.page(
            "acme", after=None, limit=3, changed_after=changed_after
        )
        rest, none = await yard.state.batches.page(
            "acme", after=first[-1].id, limit=3, changed_after=changed_after
        )
        assert [one.id for one in (*first, *rest)] == made[::-1]
        assert {one.status for one in (*first[1:], *rest)} == {Status.COMPLETED}
        assert (more, none) == (True, False)


async def test_a_change_brings_a_batch_back_and_it_leaves_again(
    reaper: Reaper, yard: BatchYard, ended: str, redis: "Redis[str]", namespace: str
) -> None:
    state, storage = yard.state, yard.storage
    await reaper.let_leave()

    assert await state.controls.amend(ended, metadata='{"who": "you"}') is None
    await save_changes(state, storage, ended)
    here = await state.batches.get(ended)
    await reaper.let_leave()

    assert not await redis.exists(f"{namespace}batch:{ended}")
    assert (await state.batches.get(ended)).fields == here.fields
    assert here.fields["metadata"] == '{"who": "you"}'
    [history] = await state.events.history([ended])
    assert history[-1].fields["type"] == "batch.updated"
    # Nothing was overwritten.
    first = await read_batch_record(storage, ended, 0)
    assert first.fields["metadata"] == '{"who": "me"}'
    assert await redis.hgetall(f"{namespace}editions") == {ended: "1"}


async def test_what_comes_back_unchanged_leaves_without_another_object(
    reaper: Reaper, yard: BatchYard, ended: str
) -> None:
    await reaper.let_leave()
    assert await yard.state.away.bring_back([ended])
    await reaper.let_leave()

    assert await yard.storage.keys(f"batches/{ended}/record-") == [record_key(ended, 0)]


async def test_an_ended_batch_that_is_away_takes_no_event(
    reaper: Reaper, yard: BatchYard, ended: str
) -> None:
    await reaper.let_leave()
    with pytest.raises(InvalidTransitionError, match="completed"):
        await cancel(yard.state, yard.storage, ended)
    await reaper.let_leave()
    assert await yard.state.controls.pause(ended) is Status.COMPLETED
    await reaper.let_leave()
    record, pin = await yard.state.batches.pinned(ended)
    assert pin.sequence == record.number("sequence") + 1
    await reaper.let_leave()
    assert (await yard.state.additions.look(ended))[0].status is Status.COMPLETED


async def test_whoever_sends_a_batch_again_meets_the_one_that_is_away(
    reaper: Reaper, yard: BatchYard, catalog: Catalog
) -> None:
    quota = NewBatchQuota(catalog, batches_per_hour=99, requests=999, tokens=999_999)
    packer = Packer(yard.state, yard.storage, quota=quota, planner=yard.planner)
    message = inline("m-1", lines(1), file_seconds=3600)
    await packer.make(message)
    batch_id = message.manifest.id
    await yard.run(batch_id, lambda _: good())
    await yard.finaliser.finish(batch_id)
    fingerprint = (await yard.state.batches.get(batch_id)).fields["fingerprint"]

    async def send() -> None:
        await packer.make(inline("m-1", lines(1), file_seconds=3600))

    async def meet() -> None:
        await accept_known(yard.state, batch_id, "m-1", fingerprint, None)

    for again in (send, meet):
        await reaper.let_leave()
        assert not await _is_here(yard.state, batch_id)
        await again()
        assert (await yard.state.batches.get(batch_id)).status is Status.COMPLETED
    await reaper.let_leave()
    with pytest.raises(RejectedError):
        await packer.make(inline("m-1", lines(1), fingerprint="other"))


@pytest.mark.parametrize("point", LEAVING_POINTS)
async def test_whoever_dies_before_it_has_left_is_followed(
    point: str,
    reaper: Reaper,
    yard: BatchYard,
    ended: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = await _told(yard.state, ended)

    def dies(name: str) -> None:
        assert name == point
        raise _DiedError

    with monkeypatch.context() as patch, pytest.raises(_DiedError):
        patch.setattr("dispatcher.leaving.crash.point", dies)
        await reaper.let_leave()
    assert await _is_here(yard.state, ended)
    assert await _told(yard.state, ended) == before
    await reaper.let_leave()

    assert not await _is_here(yard.state, ended)
    assert await _told(yard.state, ended) == before
    assert await yard.storage.keys(f"batches/{ended}/record-") == [record_key(ended, 0)]


async def test_a_record_that_changes_after_it_was_read_stays(
    reaper: Reaper, yard: BatchYard, ended: str
) -> None:
    [(stored, edition)] = await yard.state.away.read_here([ended])
    await yard.state.controls.amend(ended, metadata='{"who": "you"}')

    assert await yard.state.away.leave(stored, edition) == "changed"
    assert await _is_here(yard.state, ended)
    await reaper.let_leave()
    assert (await yard.state.batches.get(ended)).fields["metadata"] == '{"who": "you"}'


async def test_one_that_was_frozen_undoes_nothing(
    reaper: Reaper, yard: BatchYard, ended: str
) -> None:
    [(old, edition)] = await yard.state.away.read_here([ended])
    await reaper.let_leave()
    await yard.state.controls.amend(ended, metadata='{"who": "you"}')
    await reaper.let_leave()

    kept = await create_record(yard.storage, old, edition)
    assert await yard.state.away.leave(old, kept) == "gone"

    assert (await yard.state.batches.get(ended)).fields["metadata"] == '{"who": "you"}'
    yard.state.read_records_by(BatchRecords(yard.storage).read)
    assert (await yard.state.batches.get(ended)).fields["metadata"] == '{"who": "you"}'


async def test_a_live_batch_never_leaves(
    reaper: Reaper, yard: BatchYard, redis: "Redis[str]", namespace: str
) -> None:
    live = await yard.plan(lines(1))
    await redis.zadd(f"{namespace}leaving", {live: 1, "batch_gone": 1})

    await reaper.let_leave()

    assert (await yard.state.batches.get(live)).status is Status.IN_PROGRESS
    assert await redis.zcard(f"{namespace}leaving") == 0


async def test_a_stage_stays_while_its_pipeline_runs(
    reaper: Reaper, yard: BatchYard, ended: str, redis: "Redis[str]", namespace: str
) -> None:
    await redis.hset(f"{namespace}batch:{ended}", "pipeline", "pipe_1")
    await redis.zadd(f"{namespace}pipelines-live", {"pipe_1": 1})
    await Reaper(yard.state, yard.storage, ended_seconds=0).let_leave()
    assert await _is_here(yard.state, ended)

    await redis.zrem(f"{namespace}pipelines-live", "pipe_1")
    await reaper.let_leave()
    assert not await _is_here(yard.state, ended)


async def test_ended_batches_of_an_older_version_are_found(
    reaper: Reaper, yard: BatchYard, ended: str, redis: "Redis[str]", namespace: str
) -> None:
    await redis.delete(f"{namespace}leaving")
    await reaper.let_leave()
    assert await _is_here(yard.state, ended)

    await reaper.find_ended()
    await reaper.let_leave()
    assert not await _is_here(yard.state, ended)
    await reaper.find_ended()
    assert await redis.zcard(f"{namespace}leaving") == 0


@pytest.mark.parametrize("damage", ["gone", "flipped"])
async def test_a_lost_record_is_as_the_commit_has_it(
    damage: str, reaper: Reaper, yard: BatchYard, ended: str
) -> None:
    before = await yard.state.batches.get(ended)
    await reaper.let_leave()
    key = record_key(ended, 0)
    if damage == "gone":
        await yard.storage.remove([key])
    else:
        body = bytearray(await yard.storage.get(key))
        body[len(body) // 2] ^= 1
        await yard.storage.put(key, bytes(body))

    found = await yard.state.batches.get(ended)
    assert found.to_openai() == before.to_openai()
    # It can be changed, and leaves again.
    await yard.state.controls.amend(ended, metadata='{"who": "you"}')
    await reaper.let_leave()
    assert (await yard.state.batches.get(ended)).fields["metadata"] == '{"who": "you"}'


async def test_a_failure_that_did_not_happen_is_no_end_of_a_batch_whose_record_is_lost(
    reaper: Reaper, yard: BatchYard
) -> None:
    batch_id = await yard.plan(lines(2))
    # By a dispatcher that died before it happened.
    record, pin = await yard.state.batches.pinned(batch_id)
    failure = Commit(
        batch_id=batch_id,
        event=Event.LANE_FAILED,
        record=record.fields,
        fields={"first_error": "no memory"},
        **pin._asdict(),
    )
    await create_commit(yard.storage, failure)
    await yard.run(batch_id, lambda _: good())
    await yard.finaliser.finish(batch_id)
    before = await yard.state.batches.get(batch_id)
    await reaper.let_leave()
    await yard.storage.remove([record_key(batch_id, 0)])

    found = await yard.state.batches.get(batch_id)

    assert found.to_openai() == before.to_openai()


async def test_while_s3_is_away_a_batch_is_not_unknown(
    reaper: Reaper, yard: BatchYard, ended: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await reaper.let_leave()

    async def away(*_: object, **__: object) -> None:
        raise TransientError("S3 is away.")

    monkeypatch.setattr(yard.storage, "get", away)
    with pytest.raises(TransientError):
        await yard.state.batches.get(ended)
    with pytest.raises(TransientError):
        await cancel(yard.state, yard.storage, ended)
    with pytest.raises(NotFoundError):
        await yard.state.batches.get(f"batch_{'0' * 32}")


async def test_a_batch_that_is_away_is_forgotten_in_time(
    reaper: Reaper, yard: BatchYard, ended: str, redis: "Redis[str]", namespace: str
) -> None:
    await reaper.let_leave()
    for file in await yard.state.files.many((await yard.state.batches.get(ended)).file_ids):
        await yard.state.files.delete(file.tenant, file.id)

    await Reaper(yard.state, yard.storage, batch_seconds=-1).forget()

    assert await yard.state.batches.many([ended]) == []
    assert await yard.storage.keys(f"batches/{ended}/") == []
    for key in (*PLACES, "editions", "leaving"):
        assert not await redis.exists(f"{namespace}{key}")


async def test_a_new_batch_with_the_id_of_a_forgotten_one_is_not_taken_for_it(
    reaper: Reaper, yard: BatchYard, ended: str
) -> None:
    clock = [0.0]
    records = BatchRecords(yard.storage, clock=lambda: clock[0])
    await reaper.let_leave()
    first = await records.read(ended, 0)
    assert first is not None
    second = msgspec.structs.replace(first, fields={**first.fields, "metadata": "{}"})
    await yard.storage.remove([record_key(ended, 0)])
    await create_record(yard.storage, second, 0)

    # No batch leaves sooner than a minute after its end.
    clock[0] = 60.0

    assert await records.read(ended, 0) == second


async def test_only_places_stay_in_redis(
    reaper: Reaper, yard: BatchYard, redis: "Redis[str]", namespace: str
) -> None:
    batch_id = await validating(yard.state)
    await yard.state.apply(batch_id, Event.INPUT_REJECTED)
    await redis.delete(f"{namespace}outbox:events")
    counted = {"ended", "rung"}

    await reaper.let_leave()

    keys = {key.removeprefix(namespace) async for key in redis.scan_iter(f"{namespace}*")}
    own = {key for key in keys if batch_id in key}
    assert own == set()
    holding = {key for key in keys - counted if await _holds(redis, namespace + key, batch_id)}
    assert holding <= {*PLACES, "garbage"}


async def test_metadata_of_any_text_leaves_and_returns(reaper: Reaper, yard: BatchYard) -> None:
    text = json.dumps({"é\u2028\\": '"\x00\U0001f600/'}, ensure_ascii=False)
    batch_id = await validating(yard.state, metadata=text)
    await yard.state.apply(batch_id, Event.INPUT_REJECTED)
    before = await yard.state.batches.get(batch_id)

    await reaper.let_leave()
    assert await yard.state.batches.get(batch_id) == before
    await yard.state.away.bring_back([batch_id])
    assert await yard.state.batches.get(batch_id) == before


async def _told(state: State, batch_id: str) -> list[Any]:
    """All that can be asked of a batch."""
    page, _ = await state.batches.page("acme", after=None, limit=9)
    changed, _ = await state.batches.page("acme", after=None, limit=9, changed_after=0)
    return [
        await state.batches.get(batch_id),
        await state.batches.many([batch_id]),
        await state.batches.statuses([batch_id]),
        await state.events.history([batch_id]),
        await state.paces.of([batch_id]),
        await state.paces.of([batch_id], last=1),
        page,
        changed,
    ]


async def _is_here(state: State, batch_id: str) -> bool:
    return batch_id not in await state.away.among([batch_id])


async def _holds(redis: "Redis[str]", key: str, member: str) -> bool:
    match await redis.type(key):
        case "zset":
            return any(member in one for one in await redis.zrange(key, 0, -1))
        case "hash":
            return any(member in one for one in await redis.hkeys(key))
        case "set":
            return any(member in one for one in await redis.smembers(key))
        case _:
            return False


class _DiedError(Exception):
    """Stands for the end of the process."""
