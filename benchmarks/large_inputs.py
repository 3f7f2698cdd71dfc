"""The cost of large inputs before anything runs: the line check, and a batch of a million rows.

Needs no engine: the dispatcher plans whether Ray answers or not.
"""

import asyncio
import json
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import psutil
from openai import OpenAI

from benchmarks.bench_yard import BenchYard, running_yard
from benchmarks.figures import Figure, bounded, compared
from benchmarks.rows import CHAT, URLS, lines
from shared.input.validation import InputCheck, Limits
from shared.state import State

_MEBIBYTE = 1024 * 1024
_MODEL = "m"
_GENTLE_MEBIBYTES = 96
_WAITING = ("validating",)


def validation(*, turns: int) -> list[Figure]:
    """The line check of 50,000 rows against decoding the same lines once."""
    body = lines(CHAT, 50_000, model=_MODEL)
    chunks = [body[at : at + _MEBIBYTE] for at in range(0, len(body), _MEBIBYTE)]
    rows = body.splitlines()
    decode = msgspec.json.Decoder().decode

    def bare() -> None:
        for row in rows:
            decode(row)

    def check() -> None:
        found = InputCheck(URLS[CHAT], {_MODEL: frozenset({URLS[CHAT]})}, Limits())
        for chunk in chunks:
            found.feed(chunk)
        found.finish()
        assert found.rows == len(rows)
        assert not found.problems

    bare_seconds, seconds = [], []
    for _ in range(3 * turns):
        bare_seconds.append(_cpu_seconds(bare))
        seconds.append(_cpu_seconds(check))
    return [
        compared(
            "line check of 50,000 rows / plain decoding",
            statistics.median(seconds),
            statistics.median(bare_seconds),
            unit="s",
            goal=3.0,
            sense="at most",
        )
    ]


def million_rows(*, rows: int = 1_000_000) -> list[Figure]:
    """A batch of a million rows from its upload to its plan, its listing, and its dry run."""
    with tempfile.TemporaryDirectory(prefix="batchyard-million-") as folder:
        path = Path(folder) / "rows.jsonl"
        bare_seconds = _write(path, rows)
        with running_yard(Path(folder), ("gateway", "dispatcher"), model=_MODEL) as found:
            yard = Service(found)
            with path.open("rb") as file:
                yard.plan(file.read(_MEBIBYTE).rpartition(b"\n")[0], "small")
            before = yard.memory()
            with yard.watching() as peak:
                with path.open("rb") as file:
                    planned, seconds = yard.plan(file, "large")
                began = time.perf_counter()
                assert asyncio.run(yard.count_rows(planned)) == rows
                listed = yard.client.batches.list(limit=1).data[0]
                assert listed.request_counts is not None
                assert listed.request_counts.total == rows
                list_seconds = time.perf_counter() - began
                dry_seconds = yard.try_dry(planned.input_file_id, rows)
            growth = {name: (peak[name] - before[name]) / _MEBIBYTE for name in peak}
    million = f"{rows:,} rows"
    return [
        bounded(f"{million}: from creation to plan", seconds, bare_seconds, unit="s", goal=None),
        bounded(f"{million}: all slices listed", list_seconds, seconds, unit="s", goal=None),
        bounded(f"{million}: dry run", dry_seconds, seconds, unit="s", goal=None),
        *(
            bounded(
                f"{million}: maximum growth of the {name}'s memory",
                growth[name],
                before[name] / _MEBIBYTE,
                unit="MiB",
                goal=_GENTLE_MEBIBYTES,
            )
            for name in sorted(growth)
        ),
    ]


class Service:
    """The calls to a gateway and a dispatcher, and the memory of both."""

    def __init__(self, yard: BenchYard) -> None:
        self._redis_url = yard.redis_url
        self.client = OpenAI(base_url=f"{yard.address}/v1", api_key=yard.api_key, timeout=900)
        self._processes = {name: psutil.Process(pid) for name, pid in yard.pids.items()}

    def memory(self) -> dict[str, int]:
        """Resident bytes, by process, and those of the dispatcher's children."""
        own = {name: process.memory_info().rss for name, process in self._processes.items()}
        return {**own, "renderer": _of_children(self._processes["dispatcher"])}

    @contextmanager
    def watching(self) -> Iterator[dict[str, int]]:
        """The maximum memory of each process while the block runs."""
        peak, stop = self.memory(), threading.Event()

        def watch() -> None:
            while not stop.wait(0.02):
                for name, size in self.memory().items():
                    peak[name] = max(peak[name], size)

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            yield peak
        finally:
            stop.set()
            watcher.join()

    def plan(self, content: bytes | BinaryIO, name: str) -> tuple[Any, float]:
        """Upload, create, and wait until the batch may run; the batch, and how long it waited."""
        file = self.client.files.create(file=(f"{name}.jsonl", content), purpose="batch")
        return self.planned(input_file_id=file.id)

    def planned(self, **given: Any) -> tuple[Any, float]:
        """Create a batch, and wait until it may run; the batch, and how long it waited."""
        began = time.perf_counter()
        batch: Any = self.client.batches.create(
            endpoint=URLS[CHAT],  # type: ignore[arg-type]
            completion_window="24h",
            **given,
        )
        while batch.status in _WAITING:
            time.sleep(0.05)
            batch = self.client.batches.retrieve(batch.id)
        if batch.status != "in_progress":
            raise RuntimeError(f"The batch is {batch.status}: {batch.errors}")
        return batch, time.perf_counter() - began

    def try_dry(self, file_id: str, rows: int) -> float:
        """Seconds of a dry run."""
        began = time.perf_counter()
        found: Any = self.client.batches.create(
            input_file_id=file_id,
            endpoint=URLS[CHAT],  # type: ignore[arg-type]
            completion_window="24h",
            extra_body={"dry_run": True},
        )
        assert found.valid
        assert found.rows == rows
        return time.perf_counter() - began

    async def count_rows(self, batch: Any) -> int:
        """The rows of all slices, read in pages."""
        state = State(self._redis_url)
        plan = (await state.batches.get(batch.id)).fields["plan"]
        pages = state.slices.pages(batch.id, plan)
        rows = sum([row.slice.rows async for page in pages for row in page])
        await state.close()
        return rows


def _of_children(process: psutil.Process) -> int:
    found = 0
    for child in process.children():
        with suppress(psutil.NoSuchProcess):
            found += child.memory_info().rss
    return found


def _write(path: Path, rows: int) -> float:
    """Write the input; returns the seconds of decoding its lines once, the lower bound."""
    seconds = 0.0
    body = {"model": _MODEL, "messages": [{"role": "user", "content": "the quick brown fox " * 3}]}
    request: dict[str, Any] = {"custom_id": "", "method": "POST", "url": URLS[CHAT], "body": body}
    decode = msgspec.json.Decoder().decode
    with path.open("wb") as file:
        for first in range(0, rows, 1000):
            some = [
                json.dumps({**request, "custom_id": f"request-{row}"}).encode()
                for row in range(first, min(first + 1000, rows))
            ]
            file.write(b"\n".join(some) + b"\n")
            began = time.perf_counter()
            for line in some:
                decode(line)
            seconds += time.perf_counter() - began
    return seconds


def _cpu_seconds(work: Callable[[], None]) -> float:
    # CPU time of this process alone: others share the machine.
    began = time.process_time()
    work()
    return time.process_time() - began
