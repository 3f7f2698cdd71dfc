"""Pausing, resuming and changing a batch on a real Redis, wherever its slices are."""

import pytest
from redis.asyncio import Redis

from shared.errors import NotFoundError
from shared.lifecycle import PAUSABLE, Event, Status
from shared.slices import ReleaseReason
from shared.state import State
from tests.batches import (
    JOB,
    LANE,
    accept_input,
    claim,
    claim_suspects,
    claimed,
    contents,
    feed,
    in_progress,
    in_status,
    part,
    validating,
)


async def test_nothing_of_a_paused_batch_is_fed_or_claimed_until_it_is_resumed(
    state: State,
) -> None:
    batch_id = await in_progress(state, slices=3)
    await feed(state, batch_id, slices=2)

    await state.controls.pause(batch_id)

    assert await feed(state, batch_id, slices=3) == 0
    assert await claim(state, slices=3) == []
    assert await state.lanes.active(LANE) == []
    await state.controls.resume(batch_id)
    assert await state.lanes.active(LANE) == [batch_id]
    candidates = await state.lanes.candidates(LANE, slices_per_batch=9)
    assert [(slice_.index, slice_.is_ready) for slice_ in candidates] == [
        (0, False),
        (1, False),
        (2, False),
    ]
    assert await feed(state, batch_id, slices=3) == 3
    assert [one.index for one in await claim(state, slices=3)] == [0, 1, 2]


async def test_others_run_on_while_a_batch_is_paused(state: State) -> None:
    paused, other = await in_progress(state), await in_progress(state)
    await feed(state, paused, other)

    await state.controls.pause(paused)

    assert [one.batch_id for one in await claim(state, slices=9)] == [other, other]


async def test_what_runs_of_a_paused_batch_finishes_and_may_end_it(state: State) -> None:
    first, second = await claimed(state, slices=2)
    await state.controls.pause(first.batch_id)

    assert await state.claims.renew([first, second], lease_seconds=30) == []
    for one in (first, second):
        assert await state.claims.commit(one, part(one)) == "ok"

    record = await state.batches.get(first.batch_id)
    assert record.status is Status.FINALIZING
    assert not record.to_openai().paused


@pytest.mark.parametrize("how", ["release", "reap"])
async def test_what_a_paused_batch_gets_back_waits_with_the_rest(how: str, state: State) -> None:
    [one] = await claimed(state, slices=1)
    await state.controls.pause(one.batch_id)

    if how == "release":
        await state.claims.release(one, strikes=1, reason=ReleaseReason.ENGINE_DIED)
    else:
        await state.claims.reap(LANE, all_claims=True)

    assert await claim(state) + await claim_suspects(state) == []
    await state.controls.resume(one.batch_id)
    assert await feed(state, one.batch_id, slices=1) == 1
    again = await (claim_suspects if how == "release" else claim)(state)
    assert [(one.index, one.epoch) for one in again] == [(0, 2)]


async def test_a_batch_that_is_paused_while_validating_does_not_begin(state: State) -> None:
    batch_id = await validating(state)
    await state.controls.pause(batch_id)

    await accept_input(state, batch_id)

    record = await state.batches.get(batch_id)
    assert (record.status, record.to_openai().paused) == (Status.IN_PROGRESS, True)
    assert await state.lanes.names() == [LANE]
    assert await state.lanes.active(LANE) == []
    await state.controls.resume(batch_id)
    assert await state.lanes.active(LANE) == [batch_id]


@pytest.mark.parametrize("event", [Event.CANCEL_REQUESTED, Event.WINDOW_CLOSED])
async def test_a_paused_batch_ends_like_any_other(event: Event, state: State) -> None:
    batch_id = await in_progress(state)
    await state.controls.pause(batch_id)

    assert await state.apply(batch_id, event)

    assert await state.controls.resume(batch_id) is (await state.batches.get(batch_id)).status
    assert await state.lanes.active(LANE) == []


async def test_a_lane_whose_batches_are_all_paused_lets_its_job_end(state: State) -> None:
    batch_id = await in_progress(state)
    await state.lanes.open_job(LANE, "", JOB)

    await state.controls.pause(batch_id)

    assert await state.lanes.close_job(LANE, JOB)


async def test_to_pause_or_resume_again_changes_nothing(
    state: State, redis: Redis, namespace: str
) -> None:
    batch_id = await in_progress(state)
    await state.controls.pause(batch_id)
    before = await contents(redis, namespace)
    await state.controls.pause(batch_id)
    assert await contents(redis, namespace) == before

    await state.controls.resume(batch_id)
    before = await contents(redis, namespace)
    await state.controls.resume(batch_id)
    assert await contents(redis, namespace) == before


@pytest.mark.parametrize("status", [status for status in Status if status not in PAUSABLE])
async def test_a_batch_that_is_closing_or_ended_cannot_be_paused(
    status: Status, state: State, redis: Redis, namespace: str
) -> None:
    batch_id = await in_status(state, status)
    before = await contents(redis, namespace)

    assert await state.controls.pause(batch_id) is status
    assert await state.controls.resume(batch_id) is status
    assert await state.controls.amend(batch_id, priority=9) is status
    assert await contents(redis, namespace) == before


async def test_a_batch_that_is_not_there_cannot_be_steered(state: State) -> None:
    for call in (
        state.controls.pause("batch_x"),
        state.controls.resume("batch_x"),
        state.controls.amend("batch_x", priority=1),
    ):
        with pytest.raises(NotFoundError):
            await call


async def test_each_change_is_announced_with_the_state_after_it(state: State) -> None:
    batch_id = await in_progress(state)
    await state.controls.pause(batch_id)
    await state.controls.resume(batch_id)
    await state.controls.amend(batch_id, priority=9, metadata='{"k": "v"}')

    entries = (await state.outbox.read("events", limit=99, wait_seconds=0))[-3:]

    assert [entry.fields["type"] for entry in entries] == [
        "batch.paused",
        "batch.resumed",
        "batch.updated",
    ]
    paused, resumed, updated = [entry.snapshot() for entry in entries]
    assert (paused["paused"], "paused" in resumed) == ("1", False)
    assert (updated["priority"], updated["metadata"]) == ("9", '{"k": "v"}')


async def test_the_same_values_again_are_no_change(
    state: State, redis: Redis, namespace: str
) -> None:
    batch_id = await in_progress(state, metadata='{"k": "v"}')
    before = await contents(redis, namespace)

    await state.controls.amend(batch_id, priority=5, metadata='{"k": "v"}')

    assert await contents(redis, namespace) == before


async def test_metadata_changes_and_goes_after_the_end_too(state: State) -> None:
    batch_id = await in_status(state, Status.COMPLETED)

    await state.controls.amend(batch_id, metadata='{"k": "v"}')
    assert (await state.batches.get(batch_id)).to_openai().metadata == {"k": "v"}
    await state.controls.amend(batch_id, metadata="null")
    assert (await state.batches.get(batch_id)).to_openai().metadata is None


async def test_a_new_priority_takes_back_what_is_ready_and_not_what_runs(state: State) -> None:
    batch_id = await in_progress(state, slices=3)
    await feed(state, batch_id, slices=2)
    [running] = await claim(state)

    await state.controls.amend(batch_id, priority=9)

    candidates = await state.lanes.candidates(LANE, slices_per_batch=9)
    assert [(slice_.index, slice_.is_ready, slice_.priority) for slice_ in candidates] == [
        (1, False, 9),
        (2, False, 9),
    ]
    assert await state.claims.renew([running], lease_seconds=30) == []


async def test_commits_are_known_in_their_order(state: State) -> None:
    got = await claimed(state, slices=3)
    for number in (2, 0, 1):
        await state.claims.commit(got[number], part(got[number]))

    batch_id = got[0].batch_id
    assert await state.slices.commits(batch_id, 0) == [(2, 0), (0, 10), (1, 20)]
    assert await state.slices.commits(batch_id, 9) == [(2, 0), (0, 10), (1, 20)]
    assert await state.slices.commits(batch_id, 10, limit=1) == [(0, 10)]
    assert await state.slices.commits(batch_id, 25) == [(1, 20)]
    assert await state.slices.commits("batch_x", 0) == []


async def test_what_only_a_running_batch_needs_goes_a_day_after_its_end(
    state: State, redis: Redis, namespace: str
) -> None:
    got = await claimed(state, slices=2)
    await state.claims.release(got[0], strikes=1)
    await state.claims.commit(got[1], part(got[1]))
    await state.apply(got[0].batch_id, Event.LANE_FAILED)

    keys = {key async for key in redis.scan_iter(match=f"{namespace}*:{got[0].batch_id}*")}
    lasting = [key for key in keys if await redis.ttl(key) < 0]

    assert lasting == [f"{namespace}batch:{got[0].batch_id}"]
    assert len(keys) > 5
    # Late reports on a claim restore nothing.
    assert not await state.claims.release(got[1])
    assert await redis.hget(f"{namespace}reasons:{got[0].batch_id}", "1") is None
