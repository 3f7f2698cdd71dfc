"""The cost of the engine layer: rows per second of bare vLLM against `run_lines` through Ray Serve.

The same rows, on the same machine, one after the other: only the ratios mean anything, and on a
machine that others use only that of CPU time does.
    python -m benchmarks.engine_layer [chat|embeddings ...] [--rows N] [--tokens N] [--repeats N]
"""

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from pathlib import Path
from typing import NamedTuple

import psutil

from benchmarks.bare import bare_vllm
from benchmarks.rows import body, texts
from cli.models.minilm import minilm_path
from cli.models.tiny import make_tiny_chat_model
from shared.catalog import Catalog
from shared.ordering.work import Work

#: The first rows after a start are several times slower.
WARM_UP_ROWS = 200
#: This many rows take long enough to measure on two cores.
ROWS = {"chat": 1000, "embeddings": 300}
CHUNKS_AHEAD = 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="*", default=["chat", "embeddings"])
    parser.add_argument("--rows", type=int, help="default: 1000 for chat, 300 for embeddings")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--max-num-seqs", type=int, default=128)
    parser.add_argument("--rows-per-engine-call", type=int, default=16)
    parser.add_argument("--only", choices=("bare", "serve"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        measured = asyncio.run((_bare if options.only == "bare" else _serve)(options))
        print("RATES " + json.dumps(measured), flush=True)
        return
    with tempfile.TemporaryDirectory(prefix="batchyard-bench-") as folder:
        options.folder = Path(folder)
        make_tiny_chat_model(options.folder / "tiny")
        wanted = options.rows
        for kind in options.kinds:
            options.rows = wanted or ROWS[kind]
            bare = _in_a_process("bare", kind, options)
            through_serve = _in_a_process("serve", kind, options)
            ratio = statistics.median(through_serve.rates) / statistics.median(bare.rates)
            print(
                f"{kind}: bare {bare.shown()}; run_lines {through_serve.shown()}; "
                f"ratio of the medians of rows/s {ratio:.2f}",
                flush=True,
            )


class Measured(NamedTuple):
    """Rows per second of each repeat, and CPU milliseconds per row by kind of process over all."""

    rates: list[float]
    cpu: dict[str, float]

    def shown(self) -> str:
        rates = " ".join(f"{rate:.0f}" for rate in self.rates)
        parts = ", ".join(f"{name} {cost:.1f}" for name, cost in self.cpu.items())
        return f"{rates} rows/s, {sum(self.cpu.values()):.1f} ms of CPU per row ({parts})"


def _in_a_process(only: str, kind: str, options: argparse.Namespace) -> Measured:
    """Measure each in its own process, so that no part of one engine is left for the other."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.engine_layer",
        kind,
        "--only",
        only,
        "--folder",
        str(options.folder),
    ]
    for name in ("rows", "tokens", "repeats", "max_num_seqs", "rows_per_engine_call"):
        command += [f"--{name.replace('_', '-')}", str(getattr(options, name))]
    root = Path(__file__).parent.parent
    environment = {
        **os.environ,
        "PYTHONPATH": str(root),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    found = [line for line in done.stdout.splitlines() if line.startswith("RATES ")]
    if not found:
        sys.exit(f"{only} {kind} failed:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
    return Measured(*json.loads(found[0].removeprefix("RATES ")))


def _catalog(options: argparse.Namespace) -> Catalog:
    common = {"max_num_seqs": options.max_num_seqs, "enforce_eager": True}
    env = {"VLLM_CPU_KVCACHE_SPACE": "1"}
    return Catalog.model_validate(
        {
            "pools": {"cpu": {"resources": {"CPU": 1}}},
            "models": {
                "chat": {
                    "source": str(options.folder / "tiny"),
                    "pools": ["cpu"],
                    "engine": {**common, "max_model_len": 1024},
                    "env": env,
                },
                "embeddings": {
                    "source": str(minilm_path()),
                    "pools": ["cpu"],
                    "engine": {**common, "max_model_len": 256, "runner": "pooling"},
                    "env": env,
                },
            },
        }
    )


async def _measure(run: Callable[[int], Awaitable[None]], options: argparse.Namespace) -> Measured:
    await run(WARM_UP_ROWS)
    rates = []
    before = _cpu_seconds()
    for _ in range(options.repeats):
        start = time.perf_counter()
        await run(options.rows)
        rates.append(options.rows / (time.perf_counter() - start))
    rows = options.rows * options.repeats
    spent = {name: now - before.get(name, 0) for name, now in _cpu_seconds().items()}
    return Measured(rates, {name: 1000 * seconds / rows for name, seconds in spent.items()})


def _cpu_seconds() -> dict[str, float]:
    """Of this process and all below it, by kind."""
    kinds = {"VLLM::Worker": "worker", "VLLM::EngineCore": "core", ":engine": "replica"}
    this = psutil.Process()
    spent = {"client": sum(this.cpu_times()[:2])}
    for process in this.children(recursive=True):
        with contextlib.suppress(psutil.Error):
            command = " ".join(process.cmdline())
            kind = next((kind for mark, kind in kinds.items() if mark in command), "ray")
            spent[kind] = spent.get(kind, 0) + sum(process.cpu_times()[:2])
    return spent


async def _bare(options: argparse.Namespace) -> Measured:
    """Bare AsyncLLM with text in and outputs discarded."""
    kind = options.kinds[0]
    with bare_vllm(_catalog(options), kind, kind) as one:

        async def run(count: int) -> None:
            await asyncio.gather(*(one(text, options.tokens) for text in texts(count)))

        return await _measure(run, options)


async def _serve(options: argparse.Namespace) -> Measured:
    import ray

    from worker.engine_client import EngineClient
    from worker.engine_deployment import ensure_engine

    ray.init(num_cpus=16, log_to_driver=False, include_dashboard=False)
    kind = options.kinds[0]
    catalog = _catalog(options)
    client = EngineClient(ensure_engine(catalog, catalog.lane_of(kind)))
    url = "/v1/embeddings" if kind == "embeddings" else "/v1/chat/completions"
    step = options.rows_per_engine_call
    limiter = asyncio.Semaphore(options.max_num_seqs // step + CHUNKS_AHEAD)

    async def one(lines: list[bytes]) -> None:
        async with limiter:
            works = [Work(kind, n, "bench", 0, 0.0, 0.0, 1.0) for n in range(len(lines))]
            async with contextlib.aclosing(client.run_lines(lines, works)) as groups:
                async for group in groups:
                    for _, (status, answer, *_) in group:
                        if status != HTTPStatus.OK:
                            raise RuntimeError(answer.decode())

    async def run(count: int) -> None:
        lines = [
            json.dumps(
                {
                    "custom_id": str(n),
                    "method": "POST",
                    "url": url,
                    "body": body(kind, text, model=kind, tokens=options.tokens),
                }
            ).encode()
            for n, text in enumerate(texts(count))
        ]
        await asyncio.gather(*(one(lines[at : at + step]) for at in range(0, count, step)))

    measured = await _measure(run, options)
    ray.shutdown()
    return measured


if __name__ == "__main__":
    main()
