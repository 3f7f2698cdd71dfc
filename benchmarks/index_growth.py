"""The cost of calls and duties with many batches in one Redis, against the same with few.

Most of them have ended, as in a fleet that has run for a while; the others wait on one lane, and
most of those are one tenant's.
"""

import asyncio
import json
import secrets
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from benchmarks.figures import Figure, compared
from cli.servers import Redis
from dispatcher.reaper import Reaper
from dispatcher.windows import Windows
from shared.lifecycle import Event, Status
from shared.slices import Slice
from shared.state import Rate, State
from shared.state.client import Client
from shared.state.scripts import Scripts, pairs
from shared.state.state import NAMESPACE
from shared.storage import Storage

_FEW = 1_000
_TOGETHER = 200
_LANE = "m@pool"
#: One batch in this many still runs; of those, one in this many is another tenant's. More of the
#: first ones run, so that the lane has its maximum of candidates from the start.
_RUNS_EVERY, _OTHERS_EVERY, _WAITING = 20, 50, 600
#: The fields and values that start a batch.
_STARTS = ("plan", "p", "slices_total", 1, "total", 10, "lane", _LANE, "model", "m")
_BIG, _SMALL = "big", "small"


def index_growth(*, many: int = 100_000, times: int = 200) -> list[Figure]:
    """Listing, retrieving, and the dispatcher's duties, among `many` batches and among 1,000.

    Each call is made `times` times.
    """
    with tempfile.TemporaryDirectory(prefix="batchyard-index-") as folder:
        server = Redis(Path(folder), secrets.token_urlsafe(16))
        server.start()
        try:
            few, lot = asyncio.run(_measure(server.url, many, times))
        finally:
            server.kill()
    return [
        compared(
            f"{name}: {many:,} batches / {_FEW:,}",
            lot[name],
            few[name],
            unit="ms of CPU",
            goal=2.0,
            sense="at most",
        )
        for name in few
    ]


async def _measure(url: str, many: int, times: int) -> tuple[dict[str, float], dict[str, float]]:
    state = State(url)
    redis = Client.from_url(url, decode_responses=True)
    # Nothing answers there, and no duty needs it.
    storage = Storage("http://127.0.0.1:9", "none", "none", "none")
    try:
        key = await state.keys.create(_BIG)
        made = await _make(state, redis, 0, _FEW)
        few = await _milliseconds(state, storage, redis, key, made, times)
        made += await _make(state, redis, _FEW, many)
        return few, await _milliseconds(state, storage, redis, key, made, times)
    finally:
        storage.close()
        await redis.aclose()
        await state.close()


async def _milliseconds(
    state: State, storage: Storage, redis: Client, key: str, made: list[str], times: int
) -> dict[str, float]:
    reaper, windows = Reaper(state, storage), Windows(state)
    rates = [Rate("requests", 100_000_000, 60)]
    newest, middle = made[-1], made[len(made) // 2]
    calls: dict[str, Callable[[], Awaitable[object]]] = {
        "retrieve": lambda: state.keys.admit(key, rates, batch_id=middle),
        "first page of 100": lambda: state.batches.page(_BIG, after=None, limit=100),
        "page of 100 from the middle": lambda: state.batches.page(_BIG, after=middle, limit=100),
        "reaper round": lambda: _reap(reaper, windows),
        "listing of waiting batches": lambda: _look(state),
        "candidates of a lane": lambda: state.lanes.candidates(_LANE, slices_per_batch=2),
        "census": state.census.take,
    }
    assert (await state.batches.get(newest)).id == newest
    return {name: await _cpu_milliseconds(redis, call, times) for name, call in calls.items()}


async def _reap(reaper: Reaper, windows: Windows) -> None:
    await reaper.release_claims()
    await windows.close()
    await reaper.expire()
    await reaper.sweep()


async def _look(state: State) -> None:
    for status in (Status.VALIDATING, Status.FINALIZING, Status.CANCELLING):
        await state.batches.in_status(status)


async def _cpu_milliseconds(
    redis: Client, call: Callable[[], Awaitable[object]], times: int
) -> float:
    """The CPU time of a call in Redis and in this process, with no other load on either."""
    await call()
    theirs, ours = await _cpu_seconds(redis), time.process_time()
    for _ in range(times):
        await call()
    ours = time.process_time() - ours
    theirs = await _cpu_seconds(redis) - theirs
    return 1000 * (theirs + ours) / times


async def _cpu_seconds(redis: Client) -> float:
    usage = await redis.info("cpu")
    return float(usage["used_cpu_user"]) + float(usage["used_cpu_sys"])


async def _make(state: State, redis: Client, first: int, end: int) -> list[str]:
    """Make batches number `first` to `end`; returns the ids of the big tenant's."""
    # Only measured calls need Redis to write to disk before it answers.
    await redis.config_set("appendfsync", "no")
    scripts, made = Scripts(redis, NAMESPACE), list[str]()
    for start in range(first, end, _TOGETHER):
        accepted, applied = list[tuple[str, ...]](), list[tuple[str | int, ...]]()
        for number in range(start, min(start + _TOGETHER, end)):
            is_running = number % _RUNS_EVERY == 0 or number < _WAITING
            is_others = is_running and number % (_RUNS_EVERY * _OTHERS_EVERY) == 0
            batch_id = f"batch_{number:032x}"
            fields = _fields(batch_id, _SMALL if is_others else _BIG)
            accepted.append((batch_id, "print", json.dumps(pairs(fields)), "", "", ""))
            if is_running:
                await state.slices.plan(batch_id, "p", 0, [Slice(0, 1000, 0, 10, 500)])
                applied.append((batch_id, Event.INPUT_ACCEPTED, 0, "0", "", "", *_STARTS))
            else:
                applied.append((batch_id, Event.INPUT_REJECTED, 0, "0", "", ""))
            if not is_others:
                made.append(batch_id)
        await scripts.run_all("accept", accepted)
        await scripts.run_all("apply", applied)
        # No relay empties the outbox.
        await redis.delete(f"{NAMESPACE}outbox:events")
    await redis.config_set("appendfsync", "always")
    return made


def _fields(batch_id: str, tenant: str) -> dict[str, str | int]:
    now = int(time.time())
    return {
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
