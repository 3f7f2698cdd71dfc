"""A pause and a cancellation reach every row, on a real fleet and a real engine."""

import asyncio
import time
from typing import Any

from tests.e2e.conftest import WARM_SECONDS, RunningFleet, chat_lines, until

_ROWS = 800


def test_a_batch_that_is_paused_in_the_middle_is_resumed_where_it_stood(
    warm_chat: RunningFleet,
) -> None:
    batch = warm_chat.submit(chat_lines(_ROWS), "/v1/chat/completions")
    until(lambda: _completed(warm_chat, batch.id) > 0, WARM_SECONDS)

    paused = warm_chat.client.post(f"/batches/{batch.id}/pause", cast_to=dict[str, Any])
    until(lambda: asyncio.run(_held(warm_chat, batch.id)) == 0)
    left = _completed(warm_chat, batch.id)
    warm_chat.client.post(f"/batches/{batch.id}/resume", cast_to=dict[str, Any])
    ended = warm_chat.wait(batch)

    assert paused["paused"] is True
    # It knows the engine's seats, and a pause lets no more than what was sent to it end.
    assert 0 <= paused["requests_in_engine"] < _ROWS / 2
    assert left < _ROWS
    assert ended.status == "completed"
    names = [result["custom_id"] for result in warm_chat.results(ended)]
    assert names == [f"row-{row}" for row in range(_ROWS)]
    assert ended.usage is not None
    assert ended.usage.output_tokens == _ROWS * 8


def test_a_batch_whose_wave_is_under_way_is_cancelled_within_seconds(
    warm_chat: RunningFleet,
) -> None:
    batch = warm_chat.submit(chat_lines(_ROWS), "/v1/chat/completions")
    until(lambda: asyncio.run(_held(warm_chat, batch.id)) > 1, WARM_SECONDS)

    began = time.monotonic()
    warm_chat.client.batches.cancel(batch.id)
    ended = warm_chat.wait(batch)

    assert ended.status == "cancelled"
    # Three where nothing else is busy; claims that had to run out would take thirty.
    assert time.monotonic() - began < 20
    done = len(warm_chat.results(ended)) if ended.output_file_id else 0
    assert done + len(warm_chat.errors(ended)) == _ROWS


def _completed(fleet: RunningFleet, batch_id: str) -> int:
    counts = fleet.client.batches.retrieve(batch_id).request_counts
    return counts.completed if counts else 0


async def _held(fleet: RunningFleet, batch_id: str) -> int:
    """How many slices of the batch lane jobs hold."""
    state = fleet.state()
    try:
        return await state.claims.inflight(batch_id)
    finally:
        await state.close()
