"""Each way in which a batch is ended early, in each state that it may be in: what ran is kept."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

import pytest

from dispatcher.finaliser import Finaliser
from dispatcher.reaper import Reaper
from dispatcher.windows import Windows
from shared import ids
from shared.errors import InvalidTransitionError
from shared.lifecycle import Event, Status
from shared.slices import Claim
from shared.state import FileRecord
from tests.integration.dispatcher.conftest import OUTPUT_SECONDS, BatchYard, Result, good, lines

_ROWS = 6
_CANCELLED = (Status.CANCELLED, "batch_cancelled")
_EXPIRED = (Status.EXPIRED, "batch_expired")

#: Brings a batch into a state; returns the claims that are then open.
Step = Callable[[BatchYard, str], Awaitable[Sequence[Claim]]]


async def _validating(yard: BatchYard, batch_id: str) -> Sequence[Claim]:
    return ()


async def _planned(yard: BatchYard, batch_id: str) -> Sequence[Claim]:
    await yard.planner.plan(batch_id)
    return ()


async def _paused(yard: BatchYard, batch_id: str) -> Sequence[Claim]:
    await yard.planner.plan(batch_id)
    await yard.state.controls.pause(batch_id)
    return ()


async def _claimed(yard: BatchYard, batch_id: str) -> Sequence[Claim]:
    await yard.planner.plan(batch_id)
    return await yard.claim(batch_id)


async def _half_committed(yard: BatchYard, batch_id: str) -> Sequence[Claim]:
    first, second = await _claimed(yard, batch_id)
    await yard.commit(first, [good()] * first.slice.rows)
    await yard.state.claims.release(second)
    return ()


async def _all_committed(yard: BatchYard, batch_id: str) -> Sequence[Claim]:
    for claim in await _claimed(yard, batch_id):
        await yard.commit(claim, [good()] * claim.slice.rows)
    return ()


#: What the engine gives for the open claims after the end was asked for: None for a row that was
#: stopped, and no result at all where the slice is given back.
_Late = Sequence[Sequence[Result] | None]
_STATES: dict[str, tuple[Step, _Late, list[int]]] = {
    "validating": (_validating, (), []),
    "planned": (_planned, (), []),
    "paused": (_paused, (), []),
    "claimed, and given back": (_claimed, (None, None), []),
    "claimed, and one finished": (_claimed, ([good()] * 3, None), [0, 1, 2]),
    "claimed, and stopped in the middle": (_claimed, ([good(), None, good()], None), [0, 2]),
    "half committed": (_half_committed, (), [0, 1, 2]),
    "all committed": (_all_committed, (), [0, 1, 2, 3, 4, 5]),
}


@pytest.mark.parametrize("input_is", ["kept", "deleted", "lost"])
@pytest.mark.parametrize("is_in", _STATES)
async def test_a_cancelled_batch_keeps_what_ran_in_every_state(
    is_in: str, input_is: str, yard: BatchYard
) -> None:
    step, late, finished = _STATES[is_in]
    batch_id = await _submitted(yard)
    claims = await step(yard, batch_id)

    assert await yard.state.apply(batch_id, Event.CANCEL_REQUESTED)
    assert not await yard.state.apply(batch_id, Event.CANCEL_REQUESTED)
    if input_is == "deleted":
        await _delete_input(yard, batch_id)
    await _end(yard, batch_id, claims, late, is_input_lost=input_is == "lost")

    await _assert_ended(
        yard,
        batch_id,
        _CANCELLED,
        finished,
        has_rows=is_in != "validating",
        has_names=input_is != "lost",
    )


@pytest.mark.parametrize("input_is", ["kept", "deleted", "lost"])
@pytest.mark.parametrize("is_in", _STATES)
async def test_a_batch_whose_window_closes_keeps_what_ran_in_every_state(
    is_in: str, input_is: str, yard: BatchYard
) -> None:
    step, late, finished = _STATES[is_in]
    batch_id = await _submitted(yard, expires_at=1)
    windows = Windows(yard.state)
    claims = await step(yard, batch_id)

    await windows.close()
    if is_in == "validating":
        # Its input is read first, so that each of its rows gets a line.
        assert (await yard.state.batches.get(batch_id)).status is Status.VALIDATING
        await yard.planner.plan(batch_id)
        await windows.close()
    if input_is == "deleted":
        await _delete_input(yard, batch_id)
    await _end(yard, batch_id, claims, late, is_input_lost=input_is == "lost")

    # All of its rows were there before anybody looked at the clock.
    end = (Status.COMPLETED, "") if is_in == "all committed" else _EXPIRED
    await _assert_ended(yard, batch_id, end, finished, has_names=input_is != "lost")


@pytest.mark.parametrize("first", [Event.CANCEL_REQUESTED, Event.WINDOW_CLOSED])
async def test_a_batch_that_ran_out_of_time_may_be_cancelled_and_not_the_other_way_round(
    first: Event, yard: BatchYard
) -> None:
    batch_id = await _submitted(yard, expires_at=1)
    await _half_committed(yard, batch_id)
    if first is Event.CANCEL_REQUESTED:
        await yard.state.apply(batch_id, first)
    await Windows(yard.state).close()
    if first is Event.WINDOW_CLOSED:
        await yard.state.apply(batch_id, Event.CANCEL_REQUESTED)

    await _end(yard, batch_id, (), ())

    await _assert_ended(yard, batch_id, _CANCELLED, [0, 1, 2])


async def test_of_a_cancellation_and_a_closing_window_at_once_one_comes_first(
    yard: BatchYard,
) -> None:
    batch_id = await _submitted(yard, expires_at=1)
    await _half_committed(yard, batch_id)

    await asyncio.gather(
        Windows(yard.state).close(),
        yard.state.apply(batch_id, Event.CANCEL_REQUESTED),
        yard.state.apply(batch_id, Event.CANCEL_REQUESTED),
    )
    await _end(yard, batch_id, (), ())

    await _assert_ended(yard, batch_id, _CANCELLED, [0, 1, 2])


async def test_a_cancellation_in_the_middle_of_the_plan_leaves_no_plan(
    yard: BatchYard, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch_id = await _submitted(yard)
    _first(monkeypatch, yard.state.slices, "plan", lambda: _cancel(yard, batch_id))

    await yard.planner.plan(batch_id)
    await _end(yard, batch_id, (), ())

    await _assert_ended(yard, batch_id, _CANCELLED, [], has_rows=False)


async def test_a_cancellation_before_the_last_step_of_a_completion_comes_first(
    yard: BatchYard, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch_id = await _submitted(yard)
    await _all_committed(yard, batch_id)
    with monkeypatch.context() as patch:
        _first(patch, yard.state, "conclude", lambda: _cancel(yard, batch_id))
        await yard.finaliser.finish(batch_id)
    assert (await yard.state.batches.get(batch_id)).status is Status.CANCELLING

    await _end(yard, batch_id, (), ())

    await _assert_ended(yard, batch_id, _CANCELLED, [0, 1, 2, 3, 4, 5])


@pytest.mark.parametrize(
    ("last", "end"),
    [
        (None, Status.COMPLETED),
        (Event.WINDOW_CLOSED, Status.EXPIRED),
        (Event.CANCEL_REQUESTED, Status.CANCELLED),
        (Event.INPUT_LOST, Status.FAILED),
    ],
)
async def test_nothing_ends_twice(last: Event | None, end: Status, yard: BatchYard) -> None:
    batch_id = await _submitted(yard)
    await (_half_committed if last else _all_committed)(yard, batch_id)
    if last is Event.WINDOW_CLOSED:
        await yard.state.apply(batch_id, last, {"window_closed": 1})
    elif last:
        await yard.state.apply(batch_id, last)
    await yard.finaliser.finish(batch_id)
    before = await yard.state.batches.get(batch_id)
    assert before.status is end

    for event in (Event.CANCEL_REQUESTED, Event.WINDOW_CLOSED, Event.INPUT_LOST):
        with suppress(InvalidTransitionError):
            assert not await yard.state.apply(batch_id, event)
    await Finaliser(yard.state, yard.storage, output_seconds=OUTPUT_SECONDS).finish(batch_id)

    assert await yard.state.batches.get(batch_id) == before


def _first(
    patch: pytest.MonkeyPatch, noun: object, verb: str, happens: Callable[[], Awaitable[object]]
) -> None:
    """Let something happen in the moment before the verb."""
    real = getattr(noun, verb)

    async def after(*args: Any, **kwargs: Any) -> Any:
        await happens()
        return await real(*args, **kwargs)

    patch.setattr(noun, verb, after)


async def _cancel(yard: BatchYard, batch_id: str) -> None:
    await yard.state.apply(batch_id, Event.CANCEL_REQUESTED)


async def _submitted(yard: BatchYard, **changes: Any) -> str:
    """A batch over a file that its tenant may delete."""
    batch_id = await yard.submit(lines(_ROWS), **changes)
    fields = (await yard.state.batches.get(batch_id)).fields
    await yard.state.files.create(
        FileRecord(
            id=fields["input_file_id"],
            tenant="acme",
            bytes=int(fields["size"]),
            created_at=1,
            expires_at=None,
            filename="in.jsonl",
            purpose="batch",
            bucket=fields["bucket"],
            key=fields["key"],
            etag=fields["etag"],
        )
    )
    return batch_id


async def _delete_input(yard: BatchYard, batch_id: str) -> None:
    fields = (await yard.state.batches.get(batch_id)).fields
    await yard.state.files.delete("acme", fields["input_file_id"])
    await Reaper(yard.state, yard.storage).sweep()
    assert await yard.storage.keys(fields["key"]) == [fields["key"]]


async def _end(
    yard: BatchYard,
    batch_id: str,
    claims: Sequence[Claim],
    late: _Late,
    *,
    is_input_lost: bool = False,
) -> None:
    """Let the engine give what it still gives, and bring the batch to its end.

    Whoever owns an input that a message names may remove it before that.
    """
    for claim, results in zip(claims, late, strict=True):
        # Not before the last of them is settled.
        await yard.finaliser.finish(batch_id)
        assert await yard.state.claims.inflight(batch_id) > 0
        if results is None:
            await yard.state.claims.release(claim)
        else:
            await yard.commit(claim, results)
    if is_input_lost:
        await yard.storage.remove([(await yard.state.batches.get(batch_id)).fields["key"]])
    await yard.finaliser.finish(batch_id)


async def _assert_ended(
    yard: BatchYard,
    batch_id: str,
    end: tuple[Status, str],
    finished: list[int],
    *,
    has_rows: bool = True,
    has_names: bool = True,
) -> None:
    """Every row has its one line: what ran its own, and all others the reason."""
    status, code = end
    shape = (await yard.state.batches.get(batch_id)).to_openai()
    unrun = [row for row in range(_ROWS) if row not in finished] if has_rows else []
    assert shape.status is status
    counts = shape.request_counts
    assert (counts.completed, counts.failed) == (len(finished), len(unrun))
    output = await yard.parsed(shape.output_file_id) if finished else []
    errors = await yard.parsed(shape.error_file_id) if unrun else []
    assert (shape.output_file_id is None, shape.error_file_id is None) == (not finished, not unrun)
    assert [one["custom_id"] for one in output] == [f"row-{row}" for row in finished]
    assert [one["id"] for one in errors] == [ids.result_id(batch_id, row) for row in unrun]
    names = [f"row-{row}" if has_names else None for row in unrun]
    assert [one["custom_id"] for one in errors] == names
    assert {one["error"]["code"] for one in errors} <= {code}
    published = Counter(await yard.events(batch_id))
    assert published[f"batch.{status}"] == 1
    assert await yard.state.batches.past_window() == []
