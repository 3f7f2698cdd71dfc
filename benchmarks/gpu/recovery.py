"""How soon an engine answers again: after its core was killed, and after it was removed."""

import json
import time
from collections.abc import Iterator, Mapping

import psutil
from openai.types import Batch

from benchmarks.figures import Figure, bounded
from benchmarks.gpu.bench import Bench
from benchmarks.gpu.models import LARGE
from benchmarks.gpu.texts import equal

#: Rows that the engine had answered before it died may have their results until then.
_ANSWERED_SECONDS = 5.0
_FEWEST = 300


def kill(bench: Bench) -> Iterator[Figure]:
    """SIGKILL of an engine's core in mid-batch."""
    # More than are in the engine at once.
    count = max(_FEWEST, bench.plan.rows(1_200))
    core = core_of(bench.replicas(LARGE)[0])
    batch = bench.create(LARGE, equal(LARGE, count, 300, 128))
    while _completed(batch) < count // 4:
        time.sleep(0.1)
        batch = bench.view.client.batches.retrieve(batch.id)
    core.kill()
    killed_at, last = time.perf_counter(), _completed(batch)
    recovered: list[float] = []

    def see(now: Batch) -> None:
        nonlocal last
        since = time.perf_counter() - killed_at
        if _completed(now) > last and since > _ANSWERED_SECONDS and not recovered:
            recovered.append(since)
        last = _completed(now)

    batch = bench.ended(batch, see)
    if not recovered:
        raise RuntimeError("The batch ended before its engine was missed.")
    yield bounded(
        "seconds until the next new row after SIGKILL of a 7B engine's core",
        recovered[0], 0.0, unit="s", goal=30,
    )  # fmt: skip
    start = bench.start(LARGE)
    # Where the replica has gone, too, its successor has a start of its own.
    yield from _parts(start.last_restart_stages or start.stages, recovered[0])
    yield bounded(
        "results of the killed batch that are not one for each row, in order",
        wrong_results(bench, batch, count), 0.0, unit="", goal=0,
    )  # fmt: skip


def cold(bench: Bench) -> Iterator[Figure]:
    """An idle engine is removed and starts again, with what was compiled before."""
    bench.put_to_sleep(LARGE)
    began = time.perf_counter()
    bench.ended(bench.create(LARGE, equal(LARGE, 1, 50, 4)))
    seconds = time.perf_counter() - began
    yield bounded(
        "seconds from a batch of one row to its end, 7B, no engine, compile cache warm",
        seconds, bench.bare(LARGE).start_seconds, unit="s", goal=40,
    )  # fmt: skip
    yield from _parts(bench.start(LARGE).stages, seconds)


def core_of(replica: psutil.Process) -> psutil.Process:
    """The process of a replica's core."""
    children = replica.children(recursive=True)
    return next(child for child in children if "EngineCore" in " ".join(child.cmdline()))


def wrong_results(bench: Bench, batch: Batch, count: int) -> int:
    """0 if an ended batch has one result for each of so many rows, in order."""
    assert batch.output_file_id is not None
    lines = bench.view.client.files.content(batch.output_file_id).content.splitlines()
    wanted = [f"row-{number}" for number in range(count)]
    return int([json.loads(line)["custom_id"] for line in lines] != wanted)


def _completed(batch: Batch) -> int:
    return batch.request_counts.completed if batch.request_counts else 0


def _parts(stages: Mapping[str, float], whole: float) -> Iterator[Figure]:
    """What so many seconds were made of, as the replica has told it."""
    for stage, seconds in stages.items():
        yield bounded(f"of these: {stage}", seconds, whole, unit="s", goal=None)
    left = whole - sum(stages.values())
    yield bounded("of these: before and after them", left, whole, unit="s", goal=None)
