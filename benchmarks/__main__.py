"""`python -m benchmarks [NAME …]`: run, print a table, write benchmarks/results.json.

On a shared machine only ratios within one run mean anything, so both sides are measured in turns.
"""

import argparse
import asyncio
import io
import os
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path

from minio import Minio
from openai.types import Batch

from benchmarks.bare import BareEngine
from benchmarks.bench_fleet import MODELS, BenchFleet, running_fleet
from benchmarks.bus_rates import bus_flood, bus_rates
from benchmarks.ending import ending
from benchmarks.event_rates import event_rates
from benchmarks.figures import Figure, bounded, compared, publish
from benchmarks.http_rates import http_rates
from benchmarks.index_growth import index_growth
from benchmarks.lane_waits import lane_waits
from benchmarks.lanes import CASES, Scale
from benchmarks.large_inputs import million_rows, validation
from benchmarks.live import live_calls
from benchmarks.live_and_batch import Phase, live_and_batch, live_and_batch_on_two
from benchmarks.page_costs import page_costs
from benchmarks.prefixes import prefixes
from benchmarks.redis_bytes import redis_bytes
from benchmarks.rows import CHAT, EMBEDDINGS
from benchmarks.small_batches import small_batches
from shared.state import State

_RESULTS = Path(__file__).parent / "results.json"
#: With a GPU, lanes are measured on real engines, and otherwise on a scripted one.
_GPU = Path("/dev/nvidiactl")
_MEBIBYTE = 1024 * 1024
_ROWS_BEFORE_THE_KILL = 500


def throughput(fleet: BenchFleet, kind: str, *, rows: int, goal: float, turns: int) -> list[Figure]:
    """Rows per second from a batch's creation to its completion, compared with the bare engine."""
    file_id = fleet.upload(kind, rows)
    fleet.seconds(kind, fleet.upload(kind, 600))
    bare_rates, rates = [], []
    with BareEngine(fleet.catalog, MODELS[kind], kind, fleet.bare_environment) as bare:
        for _ in range(turns):
            bare_rates.append(bare.rate(rows))
            rates.append(rows / fleet.seconds(kind, file_id))
    return [
        compared(
            f"rows/s end to end / bare AsyncLLM, {kind}",
            statistics.median(rates),
            statistics.median(bare_rates),
            unit="rows/s",
            goal=goal,
            sense="at least",
        )
    ]


def one_row(fleet: BenchFleet, *, cold_seconds: float) -> list[Figure]:
    """One row from creation to completion, less its generation time."""
    file_id = fleet.upload(CHAT, 1, tokens=16)
    fleet.seconds(CHAT, file_id)
    with BareEngine(fleet.catalog, MODELS[CHAT], CHAT, fleet.bare_environment) as bare:
        generation = statistics.median(bare.seconds(tokens=16) for _ in range(5))
        warm = statistics.median(fleet.seconds(CHAT, file_id) for _ in range(9))
        start_seconds = bare.start_seconds
    return [
        bounded(
            "one row on a warm lane, less generation",
            warm - generation,
            generation,
            unit="s",
            goal=2.0,
        ),
        bounded(
            "one row on a cold lane, less generation (baseline: start of a bare engine)",
            cold_seconds - generation,
            start_seconds,
            unit="s",
            goal=None,
        ),
    ]


def upload(fleet: BenchFleet) -> list[Figure]:
    """A 200 MB upload by the gateway against a raw put of its bytes; the gateway's memory."""
    content = os.urandom(_MEBIBYTE) * 200
    where = fleet.fleet.addresses
    raw = Minio(
        where.s3_endpoint.partition("://")[2],
        access_key=where.s3_access_key,
        secret_key=where.s3_secret_key,
        secure=False,
    )
    gateway = fleet.gateway()
    fleet.client.files.create(file=("warm.jsonl", content[:_MEBIBYTE]), purpose="batch")
    before, peak, stop = gateway.memory_info().rss, 0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not stop.wait(0.02):
            peak = max(peak, gateway.memory_info().rss)

    watcher = threading.Thread(target=watch)
    watcher.start()
    raw_rates, rates = [], []
    for turn in range(3):
        began = time.perf_counter()
        raw.put_object("batchyard", f"bench/{turn}", io.BytesIO(content), len(content))
        raw_rates.append(200 / (time.perf_counter() - began))
        began = time.perf_counter()
        file = fleet.client.files.create(file=("large.jsonl", content), purpose="batch")
        rates.append(200 / (time.perf_counter() - began))
        fleet.client.files.delete(file.id)
    stop.set()
    watcher.join()
    return [
        compared(
            "200 MB upload / raw put",
            statistics.median(rates),
            statistics.median(raw_rates),
            unit="MB/s",
            goal=0.5,
            sense="at least",
        ),
        bounded(
            "growth of the gateway's memory during a 200 MB upload",
            (peak - before) / _MEBIBYTE,
            before / _MEBIBYTE,
            unit="MiB",
            goal=64,
        ),
    ]


def killed_lane_job(fleet: BenchFleet) -> list[Figure]:
    """Rows that run again after a lane job is killed, against those that were in flight."""
    batch = fleet.create(CHAT, fleet.upload(CHAT, 2000))
    while (counts := batch.request_counts) is None or counts.completed < _ROWS_BEFORE_THE_KILL:
        time.sleep(0.05)
        batch = fleet.client.batches.retrieve(batch.id)
    fleet.lane_job(CHAT).kill()
    in_flight, repeated = asyncio.run(_after_the_kill(fleet, batch))
    return [
        compared(
            "rows run again / rows in flight, after a lane job is killed",
            repeated,
            in_flight,
            unit="rows",
            goal=1.0,
            sense="at most",
        )
    ]


async def _after_the_kill(fleet: BenchFleet, batch: Batch) -> tuple[int, int]:
    state = State(fleet.fleet.addresses.redis_url)
    plan = (await state.batches.get(batch.id)).fields["plan"]
    slices = await state.slices.planned(batch.id, plan)
    claimed = set(await state.slices.epochs(batch.id)) - set(await state.slices.parts(batch.id))
    await asyncio.to_thread(fleet.finish, batch)
    epochs = await state.slices.epochs(batch.id)
    await state.close()
    in_flight = sum(slices[index].rows for index in claimed)
    repeated = sum(slices[index].rows * (epoch - 1) for index, epoch in epochs.items())
    return in_flight, repeated


def main() -> None:
    """Run the named benchmarks, or all."""
    names = (
        "throughput-embeddings",
        "throughput-chat",
        "small",
        "one-row",
        "upload",
        "killed",
        "lanes",
        "ending",
        "validation",
        "million-rows",
        "http",
        "page",
        "events",
        "bus",
        "bus-flood",
        "index",
        "redis-bytes",
        "prefixes",
        "live",
        "live-and-batch",
        "live-and-batch-2",
    )
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*names, []])
    parser.add_argument("--turns", type=int, default=3, help="how often to measure both sides")
    parser.add_argument(
        "--seconds", type=float, default=Phase().seconds, help="of a phase of live-and-batch"
    )
    options = parser.parse_args()
    phase = Phase(seconds=options.seconds)
    wanted = options.names or names
    figures: list[Figure] = []
    alone: dict[str, Callable[[], list[Figure]]] = {
        "validation": lambda: validation(turns=options.turns),
        "million-rows": million_rows,
        "http": lambda: http_rates(turns=options.turns),
        "page": lambda: page_costs(turns=options.turns),
        "events": lambda: event_rates(turns=options.turns),
        "bus": lambda: bus_rates(turns=options.turns),
        "bus-flood": bus_flood,
        "index": index_growth,
        "redis-bytes": redis_bytes,
        "prefixes": lambda: prefixes(turns=options.turns),
        "live-and-batch-2": lambda: live_and_batch_on_two(turns=options.turns, phase=phase),
        **({} if _GPU.exists() else {"lanes": lane_waits}),
    }
    for name in wanted:
        if name in alone:
            print(f"measuring  {name}", flush=True)
            figures += alone[name]()
            publish(figures, _RESULTS)
    if with_fleet := [name for name in wanted if name not in alone]:
        _measure_fleet(with_fleet, options.turns, phase, figures)


def _measure_fleet(names: list[str], turns: int, phase: Phase, figures: list[Figure]) -> None:
    with running_fleet() as fleet:
        cold_file = fleet.upload(CHAT, 1, tokens=16)
        cold_seconds = fleet.seconds(CHAT, cold_file)
        measurements: dict[str, Callable[[], list[Figure]]] = {
            "throughput-embeddings": lambda: throughput(
                fleet, EMBEDDINGS, rows=1_000, goal=0.85, turns=turns
            ),
            "throughput-chat": lambda: throughput(fleet, CHAT, rows=3_000, goal=0.75, turns=turns),
            "small": lambda: small_batches(fleet, turns=3),
            "one-row": lambda: one_row(fleet, cold_seconds=cold_seconds),
            "upload": lambda: upload(fleet),
            "killed": lambda: killed_lane_job(fleet),
            "lanes": lambda: [
                figure for measure in CASES.values() for figure in measure(fleet, Scale())
            ],
            "ending": lambda: ending(fleet),
            "live": lambda: live_calls(fleet, turns=turns),
            "live-and-batch": lambda: live_and_batch(fleet, turns=turns, phase=phase),
        }
        for name in names:
            print(f"measuring  {name}", flush=True)
            figures += measurements[name]()
            publish(figures, _RESULTS)


if __name__ == "__main__":
    main()
