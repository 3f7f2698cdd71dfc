"""What the page costs: a list out of 10,000 batches, and 1,000 pages that stay open."""

import asyncio
import statistics
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
from redis.asyncio import Redis

from benchmarks.bench_yard import BenchYard, running_yard
from benchmarks.figures import Figure, bounded, compared
from shared.state import State

_MODEL = "m"
_TENANT = "bench"
_BATCHES = 10_000
_AT_ONCE = 200
_LOADS = 30
_PAGES = 1000
#: How long Redis's commands are counted for.
_SECONDS = 10.0


def page_costs(*, turns: int) -> list[Figure]:
    """Milliseconds of a list, and commands to Redis a second of many pages as of one."""
    with tempfile.TemporaryDirectory(prefix="batchyard-page-") as folder:
        changes = {"BATCHYARD_MAX_EVENT_STREAMS": str(2 * _PAGES)}
        with running_yard(Path(folder), ("gateway",), model=_MODEL, changes=changes) as yard:
            return asyncio.run(_measure(yard, turns))


async def _measure(yard: BenchYard, turns: int) -> list[Figure]:
    newest = await _create(yard)
    connector = aiohttp.TCPConnector(limit=2 * _PAGES)
    jar = aiohttp.CookieJar(unsafe=True)
    async with (
        aiohttp.ClientSession(yard.address, connector=connector, cookie_jar=jar) as session,
        Redis.from_url(yard.redis_url) as redis,
    ):
        async with session.post("/ui/sign-in", data={"key": yard.api_key}) as answer:
            answer.raise_for_status()
        api = {"authorization": f"Bearer {yard.api_key}"}
        lists, filtered, bare = list[float](), list[float](), list[float]()
        for _ in range(turns):
            bare += [await _spent(session, "/v1/batches?limit=50", api) for _ in range(_LOADS)]
            lists += [await _spent(session, "/ui/batches") for _ in range(_LOADS)]
            # Nothing is found, so as much as ever is looked at.
            filtered += [await _spent(session, "/ui/batches?words=x-y-z") for _ in range(3)]
        ways = ("/ui/batches/live", f"/ui/batches/{newest}/live", "/ui/events/live")
        few = await _commands(session, redis, ways, len(ways))
        many = await _commands(session, redis, ways, _PAGES)
    one = statistics.median(bare)
    return [
        bounded(
            f"a page of {_BATCHES} batches, p95 (baseline: the API's list, median)",
            statistics.quantiles(lists, n=20)[-1],
            one,
            unit="ms",
            goal=200,
        ),
        bounded(
            "a filter that finds nothing among 2,000 batches, median",
            statistics.median(filtered),
            one,
            unit="ms",
            goal=None,
        ),
        compared(
            f"commands to Redis a second with {_PAGES} open pages / with {len(ways)}",
            many,
            few,
            unit="1/s",
            goal=2,
            sense="at most",
        ),
    ]


async def _create(yard: BenchYard) -> str:
    """Many batches of one tenant, of which none runs; returns the newest."""
    state, at = State(yard.redis_url), int(time.time())

    async def one(number: int) -> str:
        batch_id = f"batch_{number:032x}"
        fields: dict[str, Any] = {
            "id": batch_id,
            "tenant": _TENANT,
            "message_id": f"m-{number}",
            "door": "http",
            "endpoint": "/v1/chat/completions",
            "input_file_id": f"file-{number}",
            "bucket": "none",
            "key": "none",
            "etag": "none",
            "size": 1,
            "completion_window": "24h",
            "created_at": at,
            "expires_at": at + 86_400,
            "priority": 5,
            "metadata": f'{{"label": "batch number {number}"}}',
        }
        await state.batches.accept(batch_id, "x", fields, input_file=None, submission=None)
        return batch_id

    made: list[str] = []
    for first in range(0, _BATCHES, _AT_ONCE):
        made += await asyncio.gather(*map(one, range(first, first + _AT_ONCE)))
    await state.close()
    return made[-1]


async def _spent(
    session: aiohttp.ClientSession, path: str, headers: dict[str, str] | None = None
) -> float:
    """Milliseconds until the whole answer is there."""
    began = time.perf_counter()
    async with session.get(path, headers=headers) as answer:
        answer.raise_for_status()
        await answer.read()
    return 1000 * (time.perf_counter() - began)


async def _commands(
    session: aiohttp.ClientSession, redis: "Redis[bytes]", ways: tuple[str, ...], pages: int
) -> float:
    """How many commands a second Redis gets while so many pages are open."""
    async with AsyncExitStack() as stack:
        for number in range(pages):
            answer = await stack.enter_async_context(session.get(ways[number % len(ways)]))
            answer.raise_for_status()
            await answer.content.readline()
        before = (await redis.info("stats"))["total_commands_processed"]
        await asyncio.sleep(_SECONDS)
        after = (await redis.info("stats"))["total_commands_processed"]
    return float((after - before) / _SECONDS)
