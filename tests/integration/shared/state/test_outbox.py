import asyncio
import time

import pytest

from shared.lifecycle import Event
from shared.state import State
from tests.batches import in_progress, validating


async def test_entries_are_read_in_the_order_in_which_they_were_written(state: State) -> None:
    batch_id = await in_progress(state)
    await state.apply(batch_id, Event.CANCEL_REQUESTED)

    entries = await state.outbox.read("events", limit=10, wait_seconds=0)

    assert [entry.fields["type"] for entry in entries] == [
        "batch.accepted",
        "batch.in_progress",
        "batch.cancelling",
    ]
    assert [entry.fields["sequence"] for entry in entries] == ["1", "2", "3"]


async def test_reading_begins_with_the_oldest_until_it_is_removed(state: State) -> None:
    await in_progress(state)
    [oldest] = await state.outbox.read("events", limit=1, wait_seconds=0)
    assert await state.outbox.read("events", limit=1, wait_seconds=0) == [oldest]

    await state.outbox.remove("events", [oldest.id])

    [next_one] = await state.outbox.read("events", limit=1, wait_seconds=0)
    assert next_one.fields["type"] == "batch.in_progress"
    assert await state.outbox.length("events") == 1


async def test_the_boxes_are_apart(state: State) -> None:
    await validating(state, submission="{}")

    assert await state.outbox.length("events") == 1
    assert await state.outbox.length("submissions") == 1


@pytest.mark.parametrize("seconds", [0, 0.2])
async def test_an_empty_box_is_waited_for_no_longer_than_asked(
    seconds: float, state: State
) -> None:
    started = time.monotonic()

    entries = await state.outbox.read("events", limit=10, wait_seconds=seconds)

    assert entries == []
    assert seconds <= time.monotonic() - started < seconds + 30


async def test_an_entry_ends_the_waiting(state: State) -> None:
    reading = asyncio.create_task(state.outbox.read("events", limit=10, wait_seconds=300))
    await asyncio.sleep(0)

    await validating(state)

    async with asyncio.timeout(60):
        assert len(await reading) == 1


@pytest.mark.parametrize("protocol", [2, 3])
async def test_entries_read_the_same_under_both_protocols(
    protocol: int, redis_url: str, namespace: str, state: State
) -> None:
    await in_progress(state)
    other = State(f"{redis_url}?protocol={protocol}", namespace=namespace)

    entries = await other.outbox.read("events", limit=10, wait_seconds=1)
    await other.outbox.remove("events", [entries[0].id])
    last = await other.outbox.read("events", limit=10, wait_seconds=1)
    await other.outbox.remove("events", [last[0].id])
    none = await other.outbox.read("events", limit=10, wait_seconds=0)
    await other.close()

    assert [entry.fields["type"] for entry in entries] == ["batch.accepted", "batch.in_progress"]
    assert last == entries[1:]
    assert none == []
