"""What calls and duties cost with many batches in one Redis, beside the same with few.

Most of them have ended, as in a fleet that has run for a while; the others wait on one lane, and
most of those are one tenant's.
"""

import asyncio
import secrets
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from benchmarks.figures import Figure, compared
from cli.servers import Redis
from dispatcher.reaper import Reaper
from shared.lifecycle import Event, Status
from shared.slices import Slice
from shared.state import Rate, State
from shared.storage import Storage

_FEW = 1_000
_AT_ONCE = 64
_LANE = "m@pool"
#: One batch in so many still runs; of those, one in so many is another tenant's. Of the first ones
#: more: a lane's candidates are as many as they may be from the start.
_RUNS_EVERY, _OTHERS_EVERY, _WAITING = 10, 50, 600
_TIMES = 200
_BIG, _SMALL = "big", "small"


def index_growth(*, many: int = 100_000) -> list[Figure]:
    """Listing, retrieving, and the dispatcher's duties, among `many` batches and among 1,000."""
    with tempfile.TemporaryDirectory(prefix="batchyard-index-") as folder:
        server = Redis(Path(folder), secrets.token_urlsafe(16))
        server.start()
        try:
            few, lot = asyncio.run(_measure(server.url, many))
        finally:
            server.kill()
    return [
        compared(
            f"{name}: {many:,} batches / {_FEW:,}",
            lot[name],
            few[name],
            unit="ms",
            goal=2.0,
            sense="at most",
        )
        for name in few
    ]


async def _measure(url: str, many: int) -> tuple[dict[str, float], dict[str, float]]:
    state = State(url)
    # Nobody answers there, and nothing is due that would need it.
    storage = Storage("http://127.0.0.1:9", "none", "none", "none")
    try:
        key = await state.keys.create(_BIG)
        made = await _make(state, 0, _FEW)
        few = await _milliseconds(state, storage, key, made)
        made += await _make(state, _FEW, many)
        return few, await _milliseconds(state, storage, key, made)
    finally:
        storage.close()
        await state.close()


async def _milliseconds(
    state: State, storage: Storage, key: str, made: list[str]
) -> dict[str, float]:
    reaper = Reaper(state, storage)
    rates = [Rate("requests", 100_000_000, 60)]
    newest, middle = made[-1], made[len(made) // 2]
    calls: dict[str, Callable[[], Awaitable[object]]] = {
        "retrieve": lambda: state.keys.admit(key, rates, batch_id=middle),
        "first page of 100": lambda: state.batches.page(_BIG, after=None, limit=100),
        "page of 100 from the middle": lambda: state.batches.page(_BIG, after=middle, limit=100),
        "round of the reaper": lambda: _reap(reaper),
        "look at what waits": lambda: _look(state),
        "candidates of a lane": lambda: state.lanes.candidates(_LANE, slices_per_batch=2),
        "census": state.census.take,
    }
    assert (await state.batches.get(newest)).id == newest
    return {name: await _median(call) for name, call in calls.items()}


async def _reap(reaper: Reaper) -> None:
    await reaper.release_claims()
    await reaper.close_windows()
    await reaper.expire()
    await reaper.sweep()


async def _look(state: State) -> None:
    for status in (Status.VALIDATING, Status.FINALIZING, Status.CANCELLING):
        await state.batches.in_status(status)


async def _median(call: Callable[[], Awaitable[object]]) -> float:
    seconds = []
    for _ in range(_TIMES):
        began = time.perf_counter()
        await call()
        seconds.append(time.perf_counter() - began)
    return 1000 * statistics.median(seconds)


async def _make(state: State, first: int, end: int) -> list[str]:
    """Batches number `first` to `end`; returns the ids of the big tenant's."""
    slots, made = asyncio.Semaphore(_AT_ONCE), list[str]()

    async def one(number: int) -> None:
        async with slots:
            is_running = number % _RUNS_EVERY == 0 or number < _WAITING
            is_others = is_running and number % (_RUNS_EVERY * _OTHERS_EVERY) == 0
            batch_id = f"batch_{number:032x}"
            await _accept(state, batch_id, _SMALL if is_others else _BIG)
            if is_running:
                await _start(state, batch_id)
            else:
                await state.apply(batch_id, Event.INPUT_REJECTED)
            if not is_others:
                made.append(batch_id)

    await asyncio.gather(*map(one, range(first, end)))
    return made


async def _accept(state: State, batch_id: str, tenant: str) -> None:
    now = int(time.time())
    fields: dict[str, str | int] = {
        "id": batch_id,
        "tenant": tenant,
        "message_id": batch_id,
        "door": "http",
        "endpoint": "/v1/chat/completions",
        "input_file_id": f"file-{batch_id}",
        "bucket": "batchyard",
        "key": f"files/{batch_id}",
        "etag": "e",
        "size": 1000,
        "completion_window": "24h",
        "created_at": now,
        "expires_at": now + 86_400,
        "priority": 5,
    }
    await state.batches.accept(batch_id, "print", fields, input_file=None, submission=None)


async def _start(state: State, batch_id: str) -> None:
    await state.slices.plan(batch_id, "p", 0, [Slice(0, 1000, 0, 10, 500)])
    fields = {"plan": "p", "slices_total": 1, "total": 10, "lane": _LANE, "model": "m"}
    await state.apply(batch_id, Event.INPUT_ACCEPTED, fields)
