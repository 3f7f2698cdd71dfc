"""What stands before an engine costs so much: CPU per row above an engine that answers at once.

Rows go over Ray Serve to a real replica, with its queue, vLLM's own OpenAI layer and vLLM's core;
only the model computes nothing. CPU seconds mean something on a busy machine, too; rates do not.
    python -m benchmarks.front [short|long|embeddings ...] [--rows N] [--fronts N] [--spy FILE]
    python -m benchmarks.front embeddings --small [--expected]
With `--small`, a small batch comes now and then, and what its rows take there is printed, too.
With `--expected`, the replica hears of it before, as it does in a fleet.
The shapes `text` and `ids`, and `embeddings` and `embeddings-ids`, are the same prompts, as texts
and as tokens that were made before.
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from benchmarks.rows import CHAT, EMBEDDINGS, URLS, body, texts
from cli.models.minilm import minilm_path
from cli.models.tiny import make_tiny_chat_model
from shared.catalog import Catalog
from shared.ordering.work import Work
from shared.tasks import end

#: The first rows after a start are several times slower.
WARM_UP_ROWS = 500
ROWS_AT_ONCE = 512
#: Rows of a small batch, how many come alone, and how long after each other beside others.
_SMALL_ROWS, _SMALL_TIMES, _SMALL_PAUSE_SECONDS = 5, 20, 0.2
#: How long before it comes the replica is told of a small batch: while it is planned and claimed.
_EXPECTED_SECONDS = 0.025


class Shape(NamedTuple):
    """One kind of row: what is asked, and how many tokens come back."""

    kind: str
    tokens: int
    #: A prompt as it is, without the conversation around it.
    is_plain: bool = False
    #: The prompt's tokens in place of its text.
    as_ids: bool = False


SHAPES = {
    "short": Shape(CHAT, 4),
    "long": Shape(CHAT, 64),
    "embeddings": Shape(EMBEDDINGS, 0),
    "text": Shape(CHAT, 4, is_plain=True),
    "ids": Shape(CHAT, 4, is_plain=True, as_ids=True),
    "embeddings-ids": Shape(EMBEDDINGS, 0, as_ids=True),
}
_COMPLETIONS = "/v1/completions"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shapes", nargs="*", metavar="|".join(SHAPES))
    parser.add_argument("--rows", type=int, default=4000)
    parser.add_argument("--seats", type=int, default=256)
    parser.add_argument("--fronts", type=int, default=1)
    parser.add_argument("--rows-per-call", type=int, default=64)
    parser.add_argument("--small", action="store_true", help="small batches come meanwhile")
    parser.add_argument("--expected", action="store_true", help="the replica hears of them before")
    parser.add_argument("--spy", type=Path, help="record the replica with py-spy into this file")
    options = parser.parse_args()
    if unknown := set(options.shapes) - set(SHAPES):
        parser.error(f"no shape is called {', '.join(sorted(unknown))}")
    if len(options.shapes) == 1:
        _measure_one(SHAPES[options.shapes[0]], options)
        return
    given = [argument for argument in sys.argv[1:] if argument not in SHAPES]
    for name in options.shapes or SHAPES:
        # Serve's routers outlive their cluster, so each cluster has a process of its own.
        command = [sys.executable, "-m", "benchmarks.front", *given, name]
        subprocess.run(command, check=True)


def _measure_one(shape: Shape, options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory(prefix="batchyard-bench-") as folder, _environment():
        make_tiny_chat_model(Path(folder) / "tiny")
        rate, cost = asyncio.run(_measure(shape, _catalog(Path(folder), options), options))
    parts = ", ".join(f"{kind} {ms:.2f}" for kind, ms in sorted(cost.items()))
    print(f"{options.shapes[0]}: {rate:.0f} rows/s; ms of CPU per row: {parts}", flush=True)


@contextlib.contextmanager
def _environment() -> Iterator[None]:
    os.environ.update(
        PYTHONPATH=str(Path(__file__).parent.parent),
        VLLM_CPU_KVCACHE_SPACE="1",
        VLLM_NO_USAGE_STATS="1",
        HF_HUB_OFFLINE="1",
        RAY_USAGE_STATS_ENABLED="0",
    )
    yield


def _catalog(folder: Path, options: argparse.Namespace) -> Catalog:
    engine = {
        "max_num_seqs": options.seats,
        "enforce_eager": True,
        "worker_cls": "benchmarks.instant_worker.InstantWorker",
    }
    env = {"VLLM_CPU_KVCACHE_SPACE": "1", "TORCH_COMPILE_DISABLE": "1"}
    common = {"pools": ["cpu"], "env": env, "fronts": options.fronts}
    return Catalog.model_validate(
        {
            "pools": {"cpu": {"resources": {"CPU": 1}}},
            "models": {
                CHAT: {
                    **common,
                    "source": str(folder / "tiny"),
                    "engine": {**engine, "max_model_len": 1024},
                },
                EMBEDDINGS: {
                    **common,
                    "source": str(minilm_path()),
                    "engine": {**engine, "max_model_len": 256, "runner": "pooling"},
                },
            },
        }
    )


async def _measure(
    shape: Shape, catalog: Catalog, options: argparse.Namespace
) -> tuple[float, dict[str, float]]:
    """Rows per second, and CPU milliseconds per row by kind of process."""
    import ray

    from worker.engine_client import EngineClient
    from worker.engine_deployment import ensure_engine

    ray.init("local", num_cpus=16, log_to_driver=False, include_dashboard=False)
    client = EngineClient(ensure_engine(catalog, catalog.lane_of(shape.kind)))
    ids = _tokenizer(catalog.model(shape.kind).source) if shape.as_ids else None
    load = _Load(client, shape, ids, options.rows_per_call, tells=options.expected)
    await load.run(WARM_UP_ROWS)
    alone = [await load.small_batch() for _ in range(_SMALL_TIMES if options.small else 0)]
    spy = _spy(options.spy)
    load.messages = 0
    before, began = _cpu_seconds(), time.perf_counter()
    beside = await load.run(options.rows, with_small=options.small)
    seconds, after = time.perf_counter() - began, _cpu_seconds()
    if spy is not None:
        spy.send_signal(2)
        spy.wait()
    ray.shutdown()
    if options.small:
        print(f"ms of a small batch alone: {_spread(alone)}; beside: {_spread(beside)}", flush=True)
    print(f"rows per message of results: {options.rows / load.messages:.1f}", flush=True)
    cost = {kind: 1000 * (now - before.get(kind, 0)) / options.rows for kind, now in after.items()}
    return options.rows / seconds, cost


class _Load:
    """Rows for one engine."""

    def __init__(
        self,
        client: Any,
        shape: Shape,
        ids: Callable[[str], list[int]] | None,
        rows_per_call: int,
        *,
        tells: bool,
    ) -> None:
        """If it `tells`, the replica hears of small batches before they come."""
        self._tells = tells
        self._client = client
        self._shape = shape
        self._ids = ids
        self._step = rows_per_call
        self._calls = asyncio.Semaphore(max(1, ROWS_AT_ONCE // rows_per_call))
        self._numbers = itertools.count()
        #: Of results.
        self.messages = 0

    async def run(self, count: int, *, with_small: bool = False) -> list[float]:
        """Have so many rows answered; returns the seconds of small batches meanwhile."""
        texts_ = [f"{next(self._numbers)} {text}" for text in texts(count)]
        taken = list[float]()
        coming = asyncio.create_task(self._small_batches(taken)) if with_small else None
        starts = range(0, count, self._step)
        await asyncio.gather(*(self._call(texts_[at : at + self._step]) for at in starts))
        if coming is not None:
            await end(coming)
        return taken

    async def small_batch(self) -> float:
        """The seconds of five rows that go before others."""
        number = next(self._numbers)
        work = _work(f"small-{number}")._replace(batch_rows=_SMALL_ROWS)
        began = time.perf_counter()
        await self._ask([f"{number} {text}" for text in texts(_SMALL_ROWS)], work)
        return time.perf_counter() - began

    async def _small_batches(self, taken: list[float]) -> None:
        while True:
            if self._tells:
                # It arrives before the batch does.
                await asyncio.gather(self._client.expect_small(), asyncio.sleep(_EXPECTED_SECONDS))
            taken.append(await self.small_batch())
            await asyncio.sleep(_SMALL_PAUSE_SECONDS)

    async def _call(self, some: list[str]) -> None:
        async with self._calls:
            await self._ask(some, _work("bench"))

    async def _ask(self, some: list[str], work: Work) -> None:
        lines = [_line(self._shape, self._ids(text) if self._ids else text) for text in some]
        works = [work._replace(number=next(self._numbers)) for _ in some]
        async with contextlib.aclosing(self._client.run_lines(lines, works)) as groups:
            async for group in groups:
                self.messages += 1
                for _, (status, answer, *_) in group:
                    if status != HTTPStatus.OK:
                        raise RuntimeError(answer.decode())


def _work(batch_id: str) -> Work:
    return Work(batch_id, 0, batch_id, 0, 0.0, 0.0, 1.0)


def _spread(seconds: list[float]) -> str:
    middle, late = statistics.median(seconds), statistics.quantiles(seconds, n=20)[-1]
    return f"median {1000 * middle:.0f}, p95 {1000 * late:.0f}"


def _tokenizer(source: str) -> Callable[[str], list[int]]:
    """The model's own, with the tokens that it puts around a prompt."""
    from transformers import AutoTokenizer

    encode: Callable[[str], list[int]] = AutoTokenizer.from_pretrained(source).encode
    return encode


def _line(shape: Shape, prompt: str | list[int]) -> bytes:
    """The line of a request; a prompt is its text or its tokens."""
    url, what = URLS[shape.kind], body(shape.kind, "", model=shape.kind, tokens=shape.tokens)
    if shape.is_plain:
        url = _COMPLETIONS
        del what["messages"]
        what["prompt"] = prompt
    elif shape.kind == EMBEDDINGS:
        what["input"] = prompt
    else:
        what["messages"][0]["content"] = prompt
    return json.dumps({"custom_id": "row", "url": url, "body": what}).encode()


def _kind(process: psutil.Process) -> str:
    kinds = {"VLLM::EngineCore": "core", "worker.fork_server": "fronts", ":engine": "replica"}
    command = " ".join(process.cmdline())
    return next((kind for mark, kind in kinds.items() if mark in command), "ray")


def _cpu_seconds() -> dict[str, float]:
    """Of this process and all below it, by kind."""
    this = psutil.Process()
    spent = {"client": sum(this.cpu_times()[:2])}
    for process in this.children(recursive=True):
        with contextlib.suppress(psutil.Error):
            kind = _kind(process)
            spent[kind] = spent.get(kind, 0) + sum(process.cpu_times()[:2])
            if kind == "replica":
                # One thread has the engine's rows, and Ray has others beside it.
                threads = (one.user_time + one.system_time for one in process.threads())
                spent["replica's thread of rows"] = max(threads)
    return spent


def _spy(file: Path | None) -> "subprocess.Popen[Any] | None":
    if file is None:
        return None
    replica = next(
        one for one in psutil.Process().children(recursive=True) if _kind(one) == "replica"
    )
    command = [
        str(Path(sys.executable).with_name("py-spy")),
        "record",
        "-r",
        "200",
        "-f",
        "raw",
        "-d",
        "1000",
        "-o",
        str(file),
    ]
    return subprocess.Popen([*command, "-p", str(replica.pid)], stdout=sys.stderr)


if __name__ == "__main__":
    main()
