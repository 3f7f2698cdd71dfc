"""The same rows by other servers of the same engine."""

import asyncio
import itertools
import json
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any

import aiohttp

from benchmarks.figures import Figure, compared
from benchmarks.gpu.bench import Bench
from benchmarks.gpu.models import EMBED, SMALL
from benchmarks.gpu.rates import embedding_rows
from benchmarks.gpu.texts import equal
from benchmarks.vllm_serve import vllm_serve

_SERVERS = 4
#: Processes that ask, since one could be slower than the server, and calls of all of them at once.
_CLIENTS, _CALLS = 4, 512


def serve(bench: Bench) -> Iterator[Figure]:
    """`vllm serve` with several processes in front of its engine."""
    contents = {
        SMALL: equal(SMALL, bench.plan.rows(10_000), 50, 4),
        EMBED: embedding_rows([40] * bench.plan.rows(20_000)),
    }
    for model, content in contents.items():
        count = content.count(b"\n")
        bench.stop_bare(model)
        of_fleet = count / bench.by_fleet(model, content)
        with vllm_serve(bench.catalog, model, bench.view.bare_environment, servers=_SERVERS) as url:
            _by_http(url, content.splitlines()[: bench.plan.rows(1_000)])
            found = bench.measured(
                f"vllm serve with {_SERVERS} servers, {model}",
                content,
                partial(_by_http, url, content.splitlines()),
            )
        yield compared(
            f"rows/s, the rows of `{'front' if model == SMALL else 'embeddings'}`: fleet / "
            f"vllm serve with {_SERVERS} servers",
            of_fleet, count / found["seconds"], unit="rows/s", goal=1.0, sense="at least",
        )  # fmt: skip


def _by_http(url: str, lines: list[bytes]) -> dict[str, Any]:
    parts = [lines[first::_CLIENTS] for first in range(_CLIENTS)]
    with ProcessPoolExecutor(_CLIENTS) as clients:
        # They import first.
        list(clients.map(_nothing, range(_CLIENTS)))
        began = time.perf_counter()
        list(clients.map(_ask, itertools.repeat(url), parts))
    return {"seconds": time.perf_counter() - began}


def _nothing(_: int) -> None:
    time.sleep(0.2)


def _ask(url: str, lines: list[bytes]) -> None:
    asyncio.run(_ask_all(url, lines))


async def _ask_all(url: str, lines: list[bytes]) -> None:
    left = iter(lines)

    async def client(session: aiohttp.ClientSession) -> None:
        for line in left:
            row = json.loads(line)
            async with session.post(url + row["url"], json=row["body"]) as answer:
                answer.raise_for_status()
                await answer.read()

    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        await asyncio.gather(*(client(session) for _ in range(_CALLS // _CLIENTS)))
