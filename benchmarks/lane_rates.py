"""What a lane costs without its engine: rows through a whole fleet whose engine answers at once.

Gateway, dispatcher, RabbitMQ, Redis, S3, lane job, waves and calls over Ray Serve are the real
ones. Every output is verified row by row. Says its figures as JSON, on its last line.

    python -m benchmarks.lane_rates lane [--kind chat|embeddings] [--rows N] [--mappers 1 2 4]
                                      [--rows-per-call N] [--rows-per-message N]
    python -m benchmarks.lane_rates shares [--replicas N] [--rows N]
    python -m benchmarks.lane_rates growth [--rows N]        10,000 rows, and a batch of N
    python -m benchmarks.lane_rates messages [--seconds N]   batches of one row by message
"""

import argparse
import asyncio
import json
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
from openai import OpenAI

from benchmarks.bench_yard import BenchYard, running_yard
from benchmarks.message_rates import submitted_for
from benchmarks.rows import CHAT, EMBEDDINGS, URLS
from benchmarks.stub_answers import is_answer
from cli.servers.process import Child
from shared.state import State

_MODEL = "m"
_LANE, _JOB = f"{_MODEL}@none", "stub-lane-job"
_MEBIBYTE = 1024 * 1024
_WARM_UP_ROWS = 2_000
#: Of the batch that a large one is compared with.
_SMALL_ROWS = 10_000
_WATCH_SECONDS = 2.0
_LEDGER_SECONDS = 1.0
_FINAL = ("completed", "failed", "expired", "cancelled")
#: Ray's own actors, and those of its processes that have no task yet.
_OF_RAY = "other processes of Ray"
#: The kinds of processes, by what their command has.
_KINDS = {
    "-m gateway": "gateway",
    "-m dispatcher": "dispatcher",
    "benchmarks.stub_lane": "lane job",
    "ServeReplica": "replicas",
    "SliceMapper": "mappers",
    "MapWorker": "mappers",
    "redis-server": "redis",
    "beam.smp": "rabbitmq",
    "radosgw": "s3",
    "ceph": "s3",
    "ray::": _OF_RAY,
    "raylet": "ray",
    "gcs_server": "ray",
}
#: What a process is called before and between its tasks.
_UNNAMED = frozenset({"other", _OF_RAY, "ray"})


class CpuLedger:
    """CPU seconds of the fleet by kind of process; this one, which is its client, does not count.

    Nobody waits for Ray's processes, so it looks again and again: what one has spent would be
    forgotten with it. Their names change with what they do, and the one that says most counts.
    """

    def __init__(self) -> None:
        self._spent: dict[psutil.Process, float] = {}
        self._kinds: dict[psutil.Process, str] = {}
        self._lock = threading.Lock()

    def look(self) -> dict[psutil.Process, float]:
        """What each process has spent until now."""
        with self._lock:
            for kind, process in _processes():
                with suppress(psutil.Error):
                    self._spent[process] = sum(process.cpu_times()[:2])
                    if kind not in _UNNAMED or self._kinds.get(process, kind) in _UNNAMED:
                        self._kinds[process] = kind
            return dict(self._spent)

    def since(self, before: Mapping[psutil.Process, float]) -> dict[str, float]:
        """What has been spent since that look, by kind."""
        found: defaultdict[str, float] = defaultdict(float)
        for process, seconds in self.look().items():
            found[self._kinds[process]] += seconds - before.get(process, 0.0)
        return dict(found)


class StubFleet:
    """A fleet that runs, seen by its tenant and by its processes."""

    def __init__(self, yard: BenchYard, shares: Path, cpu: CpuLedger) -> None:
        self.yard = yard
        self.cpu = cpu
        self._shares = shares
        self.client = OpenAI(base_url=f"{yard.address}/v1", api_key=yard.api_key, timeout=900)

    def run(self, kind: str, rows: int) -> tuple[float, dict[str, float]]:
        """Run a batch and verify it; seconds from creation to end, and CPU seconds of the fleet.

        Neither has its upload and its download in it.
        """
        with tempfile.NamedTemporaryFile(suffix=".jsonl") as file:
            file.writelines(_lines(kind, rows))
            file.seek(0)
            input_file = self.client.files.create(file=("rows.jsonl", file.file), purpose="batch")
        before, began = self.cpu.look(), time.perf_counter()
        batch: Any = self.client.batches.create(
            input_file_id=input_file.id,
            endpoint=URLS[kind],  # type: ignore[arg-type]
            completion_window="24h",
        )
        while batch.status not in _FINAL:
            time.sleep(0.2)
            batch = self.client.batches.retrieve(batch.id)
        seconds, spent = time.perf_counter() - began, self.cpu.since(before)
        if batch.status != "completed" or batch.request_counts.completed != rows:
            raise RuntimeError(f"The batch is {batch.status}: {batch.request_counts}")
        with self.client.files.with_streaming_response.content(batch.output_file_id) as output:
            verify(output.iter_lines(), rows)
        return seconds, spent

    def shares(self, rows: int) -> list[int]:
        """How many rows each replica has answered, once these are so many together."""
        found: list[int] = []
        while sum(found) < rows:
            time.sleep(_WATCH_SECONDS)
            with suppress(OSError, ValueError):
                # It may be half written.
                found = json.loads(self._shares.read_text())
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["lane", "shares", "growth", "messages"])
    parser.add_argument("--kind", choices=[CHAT, EMBEDDINGS], default=CHAT)
    parser.add_argument("--rows", type=int)
    parser.add_argument("--mappers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--replicas", type=int, default=4)
    parser.add_argument("--rows-per-call", type=int)
    parser.add_argument("--rows-per-slice", type=int)
    parser.add_argument(
        "--rows-per-message", type=int, default=0, help="answers that a replica sends together"
    )
    parser.add_argument("--seconds", type=float, default=300.0)
    options = parser.parse_args()
    changes = {"BATCHYARD_MAX_EMBEDDING_INPUTS": str(10**7)}
    if options.rows_per_call:
        changes["BATCHYARD_ROWS_PER_ENGINE_CALL"] = str(options.rows_per_call)
    if options.rows_per_slice:
        changes["BATCHYARD_ROWS_PER_SLICE"] = str(options.rows_per_slice)
    found = {
        "lane": lambda: lane(
            options.kind,
            options.rows or 20_000,
            options.mappers,
            changes,
            rows_per_message=options.rows_per_message,
        ),
        "shares": lambda: shares(options.rows or 200_000, options.replicas),
        "growth": lambda: growth(options.kind, options.rows or 1_000_000, changes),
        "messages": lambda: messages(options.seconds),
    }[options.what]()
    print(json.dumps(found), flush=True)


def lane(
    kind: str,
    rows: int,
    mappers: Iterable[int],
    changes: Mapping[str, str],
    *,
    rows_per_message: int = 0,
) -> dict[str, Any]:
    """Rows per second of one lane by the number of its mappers, and where the CPU time goes."""
    found = {}
    for count in mappers:
        own = {**changes, "BATCHYARD_MAPPERS_PER_WAVE": str(count)}
        with running_stub_fleet(changes=own, rows_per_message=rows_per_message) as fleet:
            fleet.run(kind, _WARM_UP_ROWS)
            seconds, spent = fleet.run(kind, rows)
        found[count] = {
            "rows_per_second": round(rows / seconds, 1),
            "cpu_ms_per_row": round(1000 * sum(spent.values()) / rows, 3),
            "cpu_ms_per_row_by_process": {
                name: round(1000 * seconds / rows, 3) for name, seconds in spent.items()
            },
        }
        print(f"{count} mappers: {found[count]}", file=sys.stderr, flush=True)
    return {"kind": kind, "rows": rows, "by_mappers": found}


def shares(rows: int, replicas: int) -> dict[str, Any]:
    """How evenly the rows of one batch fall to the replicas."""
    with running_stub_fleet(replicas=replicas) as fleet:
        fleet.run(CHAT, rows)
        counts = fleet.shares(rows)
    return {"rows": rows, "shares": counts, "most / least": round(max(counts) / min(counts), 3)}


def growth(kind: str, rows: int, changes: Mapping[str, str]) -> dict[str, Any]:
    """What a row of a large batch costs beside one of a small batch, and the memory meanwhile."""
    with running_stub_fleet(changes=changes) as fleet:
        fleet.run(kind, _WARM_UP_ROWS)
        small_seconds, small = fleet.run(kind, _SMALL_ROWS)
        with watching() as memory:
            seconds, spent = fleet.run(kind, rows)
    cost = 1000 * sum(spent.values()) / rows
    small_cost = 1000 * sum(small.values()) / _SMALL_ROWS
    return {
        "kind": kind,
        "rows": rows,
        "verified": True,
        "rows_per_second": round(rows / seconds, 1),
        f"rows_per_second_of_{_SMALL_ROWS}": round(_SMALL_ROWS / small_seconds, 1),
        "cpu_ms_per_row": round(cost, 3),
        f"cpu_ms_per_row_of_{_SMALL_ROWS}": round(small_cost, 3),
        "cost_ratio": round(cost / small_cost, 3),
        "memory_mebibytes": memory,
    }


def messages(seconds: float) -> dict[str, Any]:
    """Inline batches of one row by message, one after the other as they end, for so long."""
    with running_stub_fleet() as fleet:
        asyncio.run(submitted_for(fleet.yard, min(20.0, seconds)))
        with watching() as memory:
            ended, took = asyncio.run(submitted_for(fleet.yard, seconds))
    return {
        "batches": ended,
        "seconds": round(took, 1),
        "batches_per_second": round(ended / took, 1),
        "memory_mebibytes": memory,
    }


@contextmanager
def running_stub_fleet(
    *, replicas: int = 1, changes: Mapping[str, str] | None = None, rows_per_message: int = 0
) -> Iterator[StubFleet]:
    """A fleet in its own folder; it is stopped afterwards."""
    with tempfile.TemporaryDirectory(prefix="batchyard-bench-") as made:
        folder = Path(made)
        catalog, shares = folder / "stub.yaml", folder / "shares.json"
        catalog.write_text(
            "pools:\n  none: {resources: {CPU: 1}}\n"
            f"models:\n  {_MODEL}: {{pools: [none], "
            f"endpoints: [{URLS[CHAT]}, {URLS[EMBEDDINGS]}], engine: {{max_num_seqs: 1024}}}}\n"
        )
        own = {
            **(changes or {}),
            "BATCHYARD_CATALOG": str(catalog),
            "PYTHONPATH": str(Path(__file__).parent.parent),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
            # A driver with a cluster of its own has a process started for each of its processors,
            # which a lane job of a fleet has not.
            "RAY_prestart_worker_first_driver": "0",
        }
        names = ("gateway", "dispatcher")
        with running_yard(folder, names, model=_MODEL, changes=own) as yard:
            asyncio.run(_open_job(yard.redis_url))
            command = [sys.executable, "-m", "benchmarks.stub_lane", _LANE, _JOB]
            command += [str(replicas), str(shares), str(rows_per_message)]
            job = Child("lane-job", command, folder, environment=yard.environment)
            try:
                job.start()
                cpu = CpuLedger()
                with _looking(cpu.look, _LEDGER_SECONDS):
                    yield StubFleet(yard, shares, cpu)
            except BaseException:
                print(job.tail_of_log(60), file=sys.stderr)
                raise
            finally:
                job.stop()


def verify(lines: Iterable[str], rows: int) -> None:
    """Raise RuntimeError unless these are the answers to all rows, in their order."""
    count = 0
    for count, line in enumerate(filter(None, lines), start=1):
        found = json.loads(line)
        if found["custom_id"] != f"row-{count - 1}" or not is_answer(
            count - 1, found["response"]["body"]
        ):
            raise RuntimeError(f"Line {count} of the output is not that of row {count - 1}.")
    if count != rows:
        raise RuntimeError(f"The output has {count} lines, and the input had {rows}.")


@contextmanager
def watching() -> Iterator[dict[str, dict[str, float]]]:
    """The memory of each kind of process: at the begin, at most, and at the end of the block."""
    found: dict[str, dict[str, float]] = {}

    def look() -> None:
        for kind, size in _memory().items():
            one = found.setdefault(kind, {"begin": size, "most": size, "end": size})
            one["most"], one["end"] = max(one["most"], size), size

    with _looking(look, _WATCH_SECONDS):
        yield found


@contextmanager
def _looking(look: Callable[[], object], seconds: float) -> Iterator[None]:
    """Look at the begin, at the end, and again and again meanwhile."""
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(seconds):
            look()

    look()
    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        stop.set()
        watcher.join()
        look()


def _memory() -> dict[str, float]:
    sizes: defaultdict[str, float] = defaultdict(float)
    for kind, process in _processes():
        with suppress(psutil.Error):
            # Forked and shared pages belong to nobody alone.
            memory = process.memory_full_info()
            sizes[kind] += memory.uss / _MEBIBYTE
    return {kind: round(size, 1) for kind, size in sizes.items()}


def _processes() -> Iterator[tuple[str, psutil.Process]]:
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            command = " ".join(process.cmdline())
            yield next((kind for mark, kind in _KINDS.items() if mark in command), "other"), process


def _lines(kind: str, rows: int) -> Iterator[bytes]:
    for number in range(rows):
        text = f"{number} the quick brown fox jumps over the lazy dog"
        if kind == EMBEDDINGS:
            body: dict[str, Any] = {"model": _MODEL, "input": text}
        else:
            chat = [{"role": "user", "content": text}]
            body = {"model": _MODEL, "messages": chat, "max_tokens": 4}
        line = {"custom_id": f"row-{number}", "method": "POST", "url": URLS[kind], "body": body}
        yield json.dumps(line).encode() + b"\n"


async def _open_job(redis_url: str) -> None:
    """Make it the lane's job before the dispatcher looks for one."""
    state = State(redis_url)
    await state.lanes.open_job(_LANE, "", _JOB)
    await state.close()


if __name__ == "__main__":
    main()
