"""The same rows by other servers of the same engine."""

import asyncio
import itertools
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any

import aiohttp

from benchmarks.figures import Figure, bounded, compared
from benchmarks.gpu.bench import Bench
from benchmarks.gpu.models import EMBED, SMALL
from benchmarks.gpu.rates import embedding_rows
from benchmarks.gpu.texts import equal
from benchmarks.vllm_serve import vllm_serve

_SERVERS = 4
#: Of a job of Ray Data LLM, which starts an engine.
_JOB_SECONDS = 240
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


def ray_data(bench: Bench) -> Iterator[Figure]:
    """Ray Data LLM, which has an engine for each job, on the rows of `small`."""
    bench.warm(SMALL)
    content = equal(SMALL, bench.plan.rows(4_000), 100, 64)
    count, path = content.count(b"\n"), bench.file(content)
    of_fleet = count / bench.by_fleet(SMALL, content)

    def run() -> dict[str, Any]:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.gpu.ray_data", str(bench.catalog), SMALL, str(path)],
            env=bench.view.bare_environment,
            capture_output=True,
            text=True,
            timeout=_JOB_SECONDS,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"Ray Data LLM failed: {done.stderr[-1500:]}")
        found = json.loads(done.stdout.splitlines()[-1])
        # What came at once with the first row was computed before it.
        return {**found, "seconds": count * found["later"] / max(1, found["rows_later"])}

    found = bench.measured(f"Ray Data LLM, {SMALL}", content, run)
    yield compared(
        "rows/s, the rows of `small`: fleet / Ray Data LLM without its engine's start",
        of_fleet, count / found["seconds"], unit="rows/s", goal=1.0, sense="at least",
    )  # fmt: skip
    yield bounded(
        "seconds of the rows of `small` with Ray Data LLM and its start (baseline: fleet)",
        found["all"], count / of_fleet, unit="s", goal=None,
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
