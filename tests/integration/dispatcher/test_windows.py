"""A batch is closed the moment its window ends, and ends soon after, whoever holds its slices."""

import asyncio
import time
from collections.abc import AsyncIterator
from functools import partial

import pytest

from dispatcher import windows
from dispatcher.windows import Windows
from shared.lifecycle import Event, Status
from shared.state import State
from shared.storage import Storage
from shared.tasks import end
from tests.batches import accept_input, claim, feed, in_progress, part, validating
from tests.eventually import eventually
from tests.faults.s3_proxy import Refusal, s3_proxy
from tests.integration.dispatcher.conftest import BatchYard, good, lines
from tests.servers import S3

#: Of a lane job that never looks whether its batches are closing.
_LEASE_SECONDS = 3600


@pytest.fixture
async def _watching(state: State, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """Windows that are watched by the clock and the bell, and never by a sweep."""
    monkeypatch.setattr(windows, "_SWEEP_SECONDS", 3600.0)
    task = asyncio.create_task(Windows(state).watch())
    yield
    await end(task)


@pytest.mark.usefixtures("_watching")
async def test_a_window_closes_when_it_ends_and_not_at_the_next_sweep(state: State) -> None:
    later = await in_progress(state, expires_at=int(time.time()) + 3600)
    soon = await in_progress(state, expires_at=int(time.time()) + 2)

    await eventually(lambda: _is(state, soon, Status.FINALIZING))

    assert await _is(state, later, Status.IN_PROGRESS)


@pytest.mark.usefixtures("_watching")
async def test_a_batch_that_is_planned_after_its_window_is_closed_at_once(state: State) -> None:
    batch_id = await validating(state, expires_at=1)

    await accept_input(state, batch_id)

    await eventually(lambda: _is(state, batch_id, Status.FINALIZING))


@pytest.mark.usefixtures("_watching")
async def test_claims_that_outlast_a_closed_window_are_taken_back(yard: BatchYard) -> None:
    batch_id = await yard.plan(lines(6), expires_at=int(time.time()) + 10)
    done, held = await yard.claim(batch_id)

    await eventually(lambda: _is(yard.state, batch_id, Status.FINALIZING))
    await yard.commit(done, [good()] * 3)

    async def is_free() -> bool:
        return await yard.state.claims.inflight(batch_id) == 0

    await eventually(is_free)
    await yard.finaliser.finish(batch_id)
    shape = (await yard.state.batches.get(batch_id)).to_openai()
    assert shape.status is Status.EXPIRED
    assert (shape.request_counts.completed, shape.request_counts.failed) == (3, 3)
    # What the lane job brings later changes nothing.
    assert await yard.state.claims.commit(held, part(held)) == "closed"


async def test_the_slices_of_all_lanes_of_a_batch_are_taken_back(state: State) -> None:
    batch_id = await in_progress(state, slices=230, lane="m@gpu n@gpu", expires_at=1)
    for lane, parity in (("m@gpu", 0), ("n@gpu", 1)):
        for first in (0, 100, 200):
            numbers = range(first + parity, min(first + 100, 230), 2)
            await state.lanes.feed(lane, [f"{batch_id}:{number}" for number in numbers])
        while await claim(state, lane=lane, slices=100, lease_seconds=_LEASE_SECONDS):
            pass
    assert await state.claims.inflight(batch_id) == 230

    patient = Windows(state, grace_seconds=3600)
    await patient.close()
    assert await state.claims.inflight(batch_id) == 230
    hasty = Windows(state, grace_seconds=0)
    await hasty.close()

    assert await state.claims.inflight(batch_id) == 0
    assert [await state.lanes.claimed_count(lane) for lane in ("m@gpu", "n@gpu")] == [0, 0]


async def test_of_a_cancelled_batch_what_has_not_begun_is_taken_back_at_once_and_the_rest_soon(
    state: State,
) -> None:
    batch_id = await in_progress(state, slices=3)
    await feed(state, batch_id, slices=3)
    await claim(state, slices=1)
    await claim(state, slices=2, begun=False)
    await state.apply(batch_id, Event.CANCEL_REQUESTED)

    patient = Windows(state, grace_seconds=3600)
    await patient.close()
    assert await state.claims.inflight(batch_id) == 1
    hasty = Windows(state, grace_seconds=0)
    await hasty.close()

    assert await state.claims.inflight(batch_id) == 0


async def test_nothing_is_taken_back_from_a_batch_that_runs(state: State) -> None:
    batch_id = await in_progress(state)
    await feed(state, batch_id)
    await claim(state, slices=2)

    assert await state.claims.take_back(batch_id) == 0

    assert await state.claims.inflight(batch_id) == 2


async def test_a_window_that_has_passed_closes_running_batches_only(yard: BatchYard) -> None:
    running = await yard.plan(lines(3), expires_at=1)
    waiting = await yard.submit(lines(3), expires_at=1)
    later = await yard.plan(lines(3), expires_at=4_000_000_000)

    await Windows(yard.state).close()

    statuses = await yard.state.batches.statuses([running, waiting, later])
    assert list(statuses.values()) == [Status.FINALIZING, Status.VALIDATING, Status.IN_PROGRESS]
    await yard.finaliser.finish(running)
    assert (await yard.state.batches.get(running)).status is Status.EXPIRED


async def test_windows_close_behind_many_that_take_their_time_to_end(
    state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(7):
        await validating(state, expires_at=number)
    closing = await in_progress(state, expires_at=8)
    few = partial(state.batches.past_window, limit=2)
    monkeypatch.setattr(state.batches, "past_window", few)

    await Windows(state).close()

    assert await _is(state, closing, Status.FINALIZING)


async def test_no_batch_waits_for_an_open_one_that_s3_fails(
    state: State, storage: Storage, s3: S3
) -> None:
    with s3_proxy(s3.endpoint) as proxy:
        failing = Storage(proxy.endpoint, *s3[1:], storage.bucket, attempts=1)
        proxy.judge = lambda method, path: Refusal(503, "SlowDown")
        opened = await in_progress(state, expires_at=1, open_model="m")
        held = await in_progress(state)
        await feed(state, held)
        await claim(state, slices=2, lease_seconds=_LEASE_SECONDS)
        await state.apply(held, Event.CANCEL_REQUESTED)
        task = asyncio.create_task(Windows(state, failing, grace_seconds=0).watch())

        async def is_free() -> bool:
            return await state.claims.inflight(held) == 0

        await eventually(is_free)
        assert await _is(state, opened, Status.IN_PROGRESS)
        proxy.judge = None
        await eventually(lambda: _is(state, opened, Status.FINALIZING))
        await end(task)


async def test_a_batch_that_runs_again_after_its_window_has_its_claims_taken_back(
    yard: BatchYard,
) -> None:
    batch_id = await yard.plan(lines(3), expires_at=int(time.time()) + 2)
    await yard.run(batch_id, lambda _: good())
    windows = Windows(yard.state, grace_seconds=0)
    await eventually(lambda: _has_passed(yard.state, batch_id))
    await windows.close()
    [broken] = (await yard.state.slices.parts(batch_id)).values()
    await yard.state.claims.drop_part(batch_id, 0, broken)
    await yard.claim(batch_id)

    await windows.close()

    assert await _is(yard.state, batch_id, Status.FINALIZING)
    assert await yard.state.claims.inflight(batch_id) == 0


async def _has_passed(state: State, batch_id: str) -> bool:
    return batch_id in await state.batches.past_window()


async def _is(state: State, batch_id: str, status: Status) -> bool:
    return (await state.batches.get(batch_id)).status is status
