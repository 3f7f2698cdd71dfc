"""How soon a pause holds, and how soon a cancellation is over, on a running fleet."""

import asyncio
import statistics
import time
from collections.abc import Sequence

import httpx

from benchmarks.bench_fleet import BenchFleet
from benchmarks.figures import Figure, bounded
from benchmarks.rows import CHAT
from shared.state import State

_SIZES = (100, 2_500, 20_000)
_TIMES = 10
#: A wave takes seconds to start, so some measurements fall before its first row and some after it.
_STEP_SECONDS = 0.8
_PAUSE_SECONDS = 2.0
_CANCEL_SECONDS = 3.0


def ending(fleet: BenchFleet) -> list[Figure]:
    """The worst of ten measurements each, with their median as the baseline."""
    figures: list[Figure] = []
    for rows in _SIZES:
        file_id = fleet.upload(CHAT, rows, tokens=64)
        pauses = [_pause(fleet, _running(fleet, file_id, turn)) for turn in range(_TIMES)]
        held, free = [one for one, _ in pauses], [one for _, one in pauses]
        cancels = [_cancel(fleet, _running(fleet, file_id, turn)) for turn in range(_TIMES)]
        figures += [
            _worst("until a pause holds", rows, held, _PAUSE_SECONDS),
            _worst("until a paused batch has left the engine", rows, free, None),
            _worst("until a cancellation is over", rows, cancels, _CANCEL_SECONDS),
        ]
    return figures


def _worst(what: str, rows: int, seconds: Sequence[float], goal: float | None) -> Figure:
    name = f"{what}, {rows:,} rows (baseline: median of {len(seconds)})"
    return bounded(name, max(seconds), statistics.median(seconds), unit="s", goal=goal)


def _running(fleet: BenchFleet, file_id: str, turn: int) -> str:
    """A batch of which a lane job holds slices, for longer in later turns."""
    batch_id = fleet.create(CHAT, file_id).id
    asyncio.run(_until_held(fleet, batch_id, is_held=True))
    time.sleep(turn * _STEP_SECONDS)
    return batch_id


def _pause(fleet: BenchFleet, batch_id: str) -> tuple[float, float]:
    """Seconds until the pause is answered, which is when it holds, and until nothing runs."""
    began = time.perf_counter()
    fleet.client.post(f"/batches/{batch_id}/pause", cast_to=httpx.Response)
    held = time.perf_counter() - began
    asyncio.run(_until_held(fleet, batch_id, is_held=False))
    free = time.perf_counter() - began
    _cancel(fleet, batch_id)
    return held, free


def _cancel(fleet: BenchFleet, batch_id: str) -> float:
    """Seconds until it is cancelled, with its files."""
    began = time.perf_counter()
    batch = fleet.client.batches.cancel(batch_id)
    while batch.status in ("cancelling", "in_progress", "validating", "finalizing"):
        time.sleep(0.02)
        batch = fleet.client.batches.retrieve(batch_id)
    return time.perf_counter() - began


async def _until_held(fleet: BenchFleet, batch_id: str, *, is_held: bool) -> None:
    """Return when a lane job holds slices of the batch, or when none does."""
    state = State(fleet.fleet.addresses.redis_url)
    try:
        while True:
            if bool(await state.claims.inflight(batch_id)) is is_held:
                return
            await asyncio.sleep(0.02)
    finally:
        await state.close()
