"""How soon an engine answers again: after its core was killed, and after it was removed."""

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
from openai.types import Batch

from benchmarks.figures import Figure, bounded
from benchmarks.gpu.bench import Bench
from benchmarks.gpu.models import LARGE
from benchmarks.gpu.texts import equal

#: Rows that the engine had answered before it died may have their results until then.
_ANSWERED_SECONDS = 5.0
_FEWEST = 300
#: What vLLM writes of the parts of a start, and what they are.
_STAGES = {
    "weights": r"Model loading took .*?([\d.]+) s(?:econds)?\b",
    "compile": r"torch\.compile (?:and initial profiling/warmup run together )?took ([\d.]+) s",
    "compile, from the cache": r"Directly load the compiled graph.*?took ([\d.]+) s",
    "graphs": r"Graph capturing finished in ([\d.]+) secs",
    "profile, cache and warm-up, with compile and graphs": (
        r"init engine \(profile, create kv cache, warmup model\) took ([\d.]+) s"
    ),
}


def kill(bench: Bench) -> Iterator[Figure]:
    """SIGKILL of an engine's core in mid-batch."""
    # More than are in the engine at once.
    count = max(_FEWEST, bench.plan.rows(1_200))
    core = _core(bench)
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
    assert batch.output_file_id is not None
    lines = bench.view.client.files.content(batch.output_file_id).content.splitlines()
    wanted = [f"row-{number}" for number in range(count)]
    wrong = int([json.loads(line)["custom_id"] for line in lines] != wanted)
    yield bounded(
        "results of the killed batch that are not one for each row, in order",
        wrong, 0.0, unit="", goal=0,
    )  # fmt: skip


def cold(bench: Bench) -> Iterator[Figure]:
    """An idle engine is removed and starts again, with what was compiled before."""
    bench.put_to_sleep(LARGE)
    logs_at = time.time()
    began = time.perf_counter()
    bench.ended(bench.create(LARGE, equal(LARGE, 1, 50, 4)))
    seconds = time.perf_counter() - began
    yield bounded(
        "seconds from a batch of one row to its end, 7B, no engine, compile cache warm",
        seconds, bench.bare(LARGE).start_seconds, unit="s", goal=40,
    )  # fmt: skip
    for stage, taken in _stages(bench.fleet.ray.logs, logs_at).items():
        yield bounded(f"of that start: {stage}", taken, seconds, unit="s", goal=None)


def _core(bench: Bench) -> psutil.Process:
    """The core process of the model's only replica."""
    (replica,) = bench.replicas(LARGE)
    children = replica.children(recursive=True)
    return next(child for child in children if "EngineCore" in " ".join(child.cmdline()))


def _completed(batch: Batch) -> int:
    return batch.request_counts.completed if batch.request_counts else 0


def _stages(logs: Path, since: float) -> dict[str, float]:
    """What engines have written of their starts since a time (Unix seconds)."""
    found = {}
    for path in logs.resolve().rglob("*"):
        if not path.is_file() or path.stat().st_mtime < since:
            continue
        content = path.read_text(errors="replace")
        for stage, pattern in _STAGES.items():
            if taken := re.findall(pattern, content):
                found[stage] = float(taken[-1])
    return found
