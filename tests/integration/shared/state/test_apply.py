import time
from itertools import product

import pytest
from redis.asyncio import Redis

from shared.errors import InvalidTransitionError, NotFoundError
from shared.lifecycle import FINAL, TRANSITIONS, Event, Status
from shared.state import State
from tests.batches import (
    LANE,
    claim_suspects,
    claimed,
    contents,
    happen,
    in_status,
    part,
    validating,
)

_LEGAL = [(event, source) for event, row in TRANSITIONS.items() for source in sorted(row.sources)]
_REPEATED = [(event, row.target) for event, row in TRANSITIONS.items()]
_ILLEGAL = [pair for pair in product(Event, Status) if pair not in _LEGAL + _REPEATED]


def test_the_pairs_are_all_there_are() -> None:
    assert len(_LEGAL) + len(_REPEATED) + len(_ILLEGAL) == len(Event) * len(Status)


@pytest.mark.parametrize(("event", "source"), _LEGAL)
async def test_a_legal_event_changes_status_time_indexes_and_outbox_in_one_step(
    event: Event, source: Status, state: State, redis: Redis, namespace: str
) -> None:
    target = TRANSITIONS[event].target
    batch_id = await in_status(state, source)
    before = await state.batches.get(batch_id)
    started = int(time.time())

    happened = await happen(state, batch_id, event)

    after = await state.batches.get(batch_id)
    assert happened
    assert after.status is target
    assert started <= after.number(f"{target}_at") <= time.time()
    assert after.number("sequence") == before.number("sequence") + 1
    for status in Status:
        is_indexed = batch_id in await state.batches.in_status(status)
        assert is_indexed == (status is target and target not in FINAL)
    has_deadline = await redis.zscore(f"{namespace}deadlines", batch_id) is not None
    assert has_deadline == (target not in FINAL)
    assert (batch_id in await state.lanes.active(LANE)) == (target is Status.IN_PROGRESS)
    last = (await state.outbox.read("events", limit=100, wait_seconds=0))[-1]
    assert last.fields["type"] == f"batch.{target}"
    assert int(last.fields["sequence"]) == after.number("sequence")
    assert last.snapshot()["status"] == target
    assert int(last.snapshot()[f"{target}_at"]) == after.number(f"{target}_at")


@pytest.mark.parametrize(("event", "status"), _REPEATED)
async def test_a_repeated_event_says_false_and_changes_nothing(
    event: Event, status: Status, state: State, redis: Redis, namespace: str
) -> None:
    batch_id = await in_status(state, status)
    before = await contents(redis, namespace)

    happened = await state.apply(batch_id, event, {"plan": "other", "errors": "[]"})

    assert not happened
    assert await contents(redis, namespace) == before


@pytest.mark.parametrize(("event", "status"), _ILLEGAL)
async def test_an_illegal_event_raises_and_changes_nothing(
    event: Event, status: Status, state: State, redis: Redis, namespace: str
) -> None:
    batch_id = await in_status(state, status)
    before = await contents(redis, namespace)

    with pytest.raises(InvalidTransitionError) as refusal:
        await state.apply(batch_id, event, {"plan": "other", "errors": "[]"})

    assert refusal.value.status == status
    assert await contents(redis, namespace) == before


@pytest.mark.parametrize("event", Event)
async def test_an_event_of_an_unknown_batch_is_not_found(
    event: Event, state: State, redis: Redis, namespace: str
) -> None:
    with pytest.raises(NotFoundError):
        await state.apply("batch_none", event, {"plan": "p"})

    assert await contents(redis, namespace) == {}


async def test_the_fields_of_an_event_are_in_its_own_announcement(state: State) -> None:
    batch_id = await validating(state)

    await state.apply(
        batch_id, Event.INPUT_REJECTED, {"errors": '[{"code":"x"}]', "first_error": "line 3"}
    )

    entries = await state.outbox.read("events", limit=10, wait_seconds=0)
    assert [entry.fields["type"] for entry in entries] == ["batch.accepted", "batch.failed"]
    assert entries[-1].snapshot()["first_error"] == "line 3"
    assert (await state.batches.get(batch_id)).fields["errors"] == '[{"code":"x"}]'


async def test_a_batch_ends_together_with_its_files(state: State) -> None:
    [only] = await claimed(state, slices=1)
    await state.claims.commit(only, part(only))
    file = _file(only.batch_id)

    happened = await state.conclude(
        only.batch_id,
        Event.OUTPUT_COMMITTED,
        files=[file],
        fields={"output_file_id": "file-out"},
        garbage=f"batches/{only.batch_id}/parts/",
    )

    record = await state.batches.get(only.batch_id)
    assert happened
    assert record.status is Status.COMPLETED
    assert record.fields["output_file_id"] == "file-out"
    assert (await state.files.get("acme", "file-out")).key == "k"
    assert await state.files.garbage() == [f"batches/{only.batch_id}/parts/"]


async def test_a_repeated_end_changes_nothing(state: State, redis: Redis, namespace: str) -> None:
    [only] = await claimed(state, slices=1)
    await state.claims.commit(only, part(only))
    await state.conclude(only.batch_id, Event.OUTPUT_COMMITTED, files=[], fields={})
    before = await contents(redis, namespace)

    happened = await state.conclude(
        only.batch_id,
        Event.OUTPUT_COMMITTED,
        files=[_file(only.batch_id)],
        fields={"x": 1},
        garbage="parts/",
    )

    assert not happened
    assert await contents(redis, namespace) == before


async def test_no_batch_ends_while_a_slice_is_claimed(
    state: State, redis: Redis, namespace: str
) -> None:
    [only] = await claimed(state, slices=1)
    await state.apply(only.batch_id, Event.CANCEL_REQUESTED)
    before = await contents(redis, namespace)

    with pytest.raises(InvalidTransitionError):
        await state.conclude(
            only.batch_id, Event.CANCEL_COMMITTED, files=[_file(only.batch_id)], fields={}
        )

    assert await contents(redis, namespace) == before


async def test_an_end_that_was_overtaken_by_a_cancellation_leaves_no_files(state: State) -> None:
    [only] = await claimed(state, slices=1)
    await state.claims.commit(only, part(only))
    await state.apply(only.batch_id, Event.CANCEL_REQUESTED)

    with pytest.raises(InvalidTransitionError):
        await state.conclude(
            only.batch_id, Event.OUTPUT_COMMITTED, files=[_file(only.batch_id)], fields={}
        )

    with pytest.raises(NotFoundError):
        await state.files.get("acme", "file-out")


async def test_what_only_a_live_batch_needs_expires_after_its_end(
    state: State, redis: Redis, namespace: str
) -> None:
    first, second = await claimed(state, slices=2)
    await state.claims.release(second, strikes=1)
    await state.claims.commit(first, part(first))
    assert [again.index for again in await claim_suspects(state)] == [1]
    needed = [f"{kind}:{first.batch_id}" for kind in ("parts", "epochs", "strikes", "inflight")]
    needed.append(f"plan:{first.batch_id}:p")
    assert [await redis.ttl(f"{namespace}{key}") for key in needed] == [-1] * 5

    await state.apply(first.batch_id, Event.LANE_FAILED, {"first_error": "no engine"})

    assert {await redis.ttl(f"{namespace}{key}") for key in needed} <= {86_399, 86_400}
    assert await redis.ttl(f"{namespace}batch:{first.batch_id}") == -1


def _file(batch_id: str) -> dict[str, str | int]:
    return {
        "id": "file-out",
        "tenant": "acme",
        "bytes": 10,
        "created_at": 1,
        "filename": f"{batch_id}_output.jsonl",
        "purpose": "batch_output",
        "bucket": "b",
        "key": "k",
        "etag": "e",
        "owned": 1,
    }
