"""Waits and shares on one lane: how long five rows take beside a giant batch, and what it loses.

    python -m benchmarks.lanes [CASE …] [--giant-rows N] [--repeats N] [--pause SECONDS]

Everything runs on one fleet, and each ratio compares runs that follow each other. The giant's size
does not matter as long as it lasts: a case stops with an error if its giant ends before it.
"""

import argparse
import asyncio
import itertools
import json
import math
import random
import secrets
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from openai import OpenAI
from openai.types import Batch

from benchmarks.bare import BareEngine
from benchmarks.bench_fleet import MODELS, BenchFleet, running_fleet
from benchmarks.figures import Figure, bounded, compared, publish
from benchmarks.rows import CHAT, EMBEDDINGS, URLS, body, texts
from shared.lifecycle import Status
from shared.state import State

_RESULTS = Path(__file__).parent / "results-lanes.json"
_SMALL_ROWS = 5
_SMALL_TOKENS, _GIANT_TOKENS = 16, 128
_POLL_SECONDS = 0.02
#: Rows of the giant that are done before anything is measured.
_UNDER_WAY = 256
_TENANTS = 10


class Scale(NamedTuple):
    """How large and how often."""

    giant_rows: int = 50_000
    repeats: int = 10
    #: Between two small batches, so that the giant's loss is that of a few small batches and not of
    #: a stream of them.
    pause_seconds: float = 2.0


class Tenant:
    """A tenant of the fleet with a key of its own."""

    def __init__(self, fleet: BenchFleet, name: str) -> None:
        key = f"sk-{secrets.token_hex(16)}"
        asyncio.run(_add_key(fleet.fleet.addresses.redis_url, name, key))
        self.client = OpenAI(base_url=fleet.fleet.base_url, api_key=key)

    def upload(self, kind: str, tokens: Sequence[int]) -> str:
        """The id of an input with a row for each number of output tokens."""
        rows = zip(itertools.count(), texts(len(tokens)), tokens, strict=False)
        content = b"".join(_line(kind, number, text, count) for number, text, count in rows)
        return self.client.files.create(file=("rows.jsonl", content), purpose="batch").id

    def create(self, kind: str, file_id: str, *, priority: int = 5) -> Batch:
        return self.client.batches.create(
            input_file_id=file_id,
            endpoint=URLS[kind],  # type: ignore[arg-type]
            completion_window="24h",
            extra_body={"priority": priority},
        )

    def seconds(self, kind: str, file_id: str, *, priority: int = 5) -> float:
        """From creating one batch of the file to its completion."""
        began = time.perf_counter()
        batch = self.create(kind, file_id, priority=priority)
        while (batch := self.client.batches.retrieve(batch.id)).status != "completed":
            if batch.status in ("failed", "expired", "cancelled"):
                raise RuntimeError(f"The batch ended as {batch.status}: {batch.errors}")
            time.sleep(_POLL_SECONDS)
        return time.perf_counter() - began


async def _add_key(redis_url: str, tenant: str, key: str) -> None:
    state = State(redis_url)
    await state.keys.add(tenant, key)
    await state.close()


def _line(kind: str, number: int, text: str, tokens: int) -> bytes:
    line = {
        "custom_id": f"row-{number}",
        "method": "POST",
        "url": URLS[kind],
        "body": body(kind, text, model=MODELS[kind], tokens=tokens),
    }
    return json.dumps(line).encode() + b"\n"


class Giants:
    """Giant batches that run all the time."""

    def __init__(self, batches: Sequence[tuple[Tenant, Batch]]) -> None:
        self._batches = batches

    def done(self) -> int:
        """How many of their rows have results. Raises RuntimeError when one has ended."""
        total = 0
        for tenant, batch in self._batches:
            now = tenant.client.batches.retrieve(batch.id)
            if now.status not in ("validating", "in_progress"):
                raise RuntimeError("A giant batch ended too early. Ask for more --giant-rows.")
            total += now.request_counts.completed if now.request_counts else 0
        return total

    def rate(self, work: Callable[[], None]) -> float:
        """Their rows per second during some work, from one change of the count to another."""
        began = self._next_change()
        work()
        ended = self._next_change()
        return (ended[1] - began[1]) / (ended[0] - began[0])

    def _next_change(self) -> tuple[float, int]:
        before = self.done()
        while (now := self.done()) == before:
            time.sleep(_POLL_SECONDS)
        return time.perf_counter(), now

    def cancel(self) -> None:
        for tenant, batch in self._batches:
            tenant.client.batches.cancel(batch.id)
        for tenant, batch in self._batches:
            while tenant.client.batches.retrieve(batch.id).status != "cancelled":
                time.sleep(_POLL_SECONDS)


@contextmanager
def giants(owners: Sequence[Tenant], kind: str, rows: int) -> Iterator[Giants]:
    """One giant batch of each of these tenants, under way."""
    inputs = [owner.upload(kind, [_GIANT_TOKENS] * (rows // len(owners))) for owner in owners]
    running = Giants(
        [(owner, owner.create(kind, file)) for owner, file in zip(owners, inputs, strict=True)]
    )
    try:
        while running.done() < _UNDER_WAY:
            time.sleep(_POLL_SECONDS)
        yield running
    finally:
        running.cancel()


def behind(fleet: BenchFleet, kind: str, scale: Scale) -> list[Figure]:
    """Five rows alone, and beside giants of others and of the same tenant."""
    me, *others = [Tenant(fleet, f"tenant-{number}") for number in range(_TENANTS + 1)]
    file_id = me.upload(kind, [_SMALL_TOKENS] * _SMALL_ROWS)
    me.seconds(kind, file_id)
    alone = _p95(me.seconds(kind, file_id) for _ in range(scale.repeats))
    figures: list[Figure] = []
    cases = {
        "another tenant's giant": (others[:1], 5, 2.0),
        "another tenant's giant, higher priority": (others[:1], 9, 1.5),
        "the same tenant's giant": ([me], 5, 2.0),
        "the same tenant's giant, higher priority": ([me], 9, 1.5),
        "giants of ten tenants": (others, 5, 2.0),
    }
    for name, (owners, priority, goal) in cases.items():
        with giants(owners, kind, scale.giant_rows) as running:
            taken: list[float] = []

            def disturb(taken: list[float] = taken, priority: int = priority) -> None:
                for _ in range(scale.repeats):
                    taken.append(me.seconds(kind, file_id, priority=priority))
                    time.sleep(scale.pause_seconds)

            undisturbed = running.rate(lambda: time.sleep(scale.repeats * scale.pause_seconds))
            disturbed = running.rate(disturb)
        title = f"5 rows of {kind} beside {name}"
        figures += [
            compared(f"{title} / alone, p95", _p95(taken), alone, unit="s", goal=goal,
                     sense="at most"),
            compared(f"{title}: the giant's rate / without them", disturbed, undisturbed,
                     unit="rows/s", goal=0.97, sense="at least"),
        ]  # fmt: skip
        print(f"{title}: {_shown(taken)} s; alone p95 {alone:.2f} s", flush=True)
    return figures


def one_row(fleet: BenchFleet, scale: Scale) -> list[Figure]:
    """One row on a warm lane, from creation to completion, over its generation alone."""
    me = Tenant(fleet, "one-row")
    file_id = me.upload(CHAT, [_SMALL_TOKENS])
    me.seconds(CHAT, file_id)
    with BareEngine(fleet.catalog, MODELS[CHAT], CHAT, fleet.bare_environment) as bare:
        generation = statistics.median(bare.seconds(tokens=_SMALL_TOKENS) for _ in range(5))
    taken = sorted(me.seconds(CHAT, file_id) for _ in range(10 * scale.repeats))
    return [
        bounded("one row, warm, p50 over generation", statistics.median(taken) - generation,
                generation, unit="s", goal=0.2),
        bounded("one row, warm, p99", taken[int(0.99 * (len(taken) - 1))], generation,
                unit="s", goal=1.0),
    ]  # fmt: skip


def mixed_lengths(fleet: BenchFleet, scale: Scale) -> list[Figure]:
    """Rows of 8 to 512 tokens against as many of equal length with the same sum, in turns."""
    random_ = random.Random(7)
    tokens = [int(math.exp(random_.uniform(math.log(8), math.log(512)))) for _ in range(768)]
    equal = [round(statistics.mean(tokens))] * len(tokens)
    me = Tenant(fleet, "lengths")
    files = {"mixed": me.upload(CHAT, tokens), "equal": me.upload(CHAT, equal)}
    taken: dict[str, list[float]] = {name: [] for name in files}
    for _ in range(max(1, scale.repeats // 3)):
        for name, file_id in files.items():
            taken[name].append(me.seconds(CHAT, file_id))
    return [
        compared("rows of mixed lengths / of equal ones",
                 sum(tokens) / statistics.median(taken["mixed"]),
                 sum(equal) / statistics.median(taken["equal"]),
                 unit="tokens/s", goal=0.9, sense="at least"),
    ]  # fmt: skip


def phases(fleet: BenchFleet, scale: Scale) -> list[Figure]:
    """Where five rows spend their time beside a giant batch: seconds from their creation."""
    me, other = Tenant(fleet, "phases"), Tenant(fleet, "phases-giant")
    file_id = me.upload(CHAT, [_SMALL_TOKENS] * _SMALL_ROWS)
    found: dict[str, dict[str, list[float]]] = {}
    for _ in range(scale.repeats):
        _note(found.setdefault("alone", {}), _watched(fleet, me, file_id))
    with giants([other], CHAT, scale.giant_rows):
        for _ in range(scale.repeats):
            _note(found.setdefault("beside a giant", {}), _watched(fleet, me, file_id))
            time.sleep(scale.pause_seconds)
    return [
        bounded(f"5 rows {where}: {phase}, p50", statistics.median(times), 0.0, unit="s", goal=None)
        for where, by_phase in found.items()
        for phase, times in by_phase.items()
    ]


def _note(found: dict[str, list[float]], times: dict[str, float]) -> None:
    for phase, seconds in times.items():
        found.setdefault(phase, []).append(seconds)


def _watched(fleet: BenchFleet, tenant: Tenant, file_id: str) -> dict[str, float]:
    return asyncio.run(_watch(fleet, tenant, file_id))


async def _watch(fleet: BenchFleet, tenant: Tenant, file_id: str) -> dict[str, float]:
    """When the batch reached each phase, by looking at Redis all the time."""
    state = State(fleet.fleet.addresses.redis_url)
    began = time.perf_counter()
    batch = await asyncio.to_thread(tenant.create, CHAT, file_id)
    times = {"accepted": time.perf_counter() - began}
    while "completed" not in times:
        record = await state.batches.get(batch.id)
        is_claimed = await state.claims.inflight(batch.id) > 0
        is_run = await state.slices.parts(batch.id)
        reached = {
            "planned": record.status is not Status.VALIDATING,
            "claimed": is_claimed or bool(is_run),
            "committed": bool(is_run),
            "completed": record.status is Status.COMPLETED,
        }
        for phase, is_there in reached.items():
            if is_there:
                times.setdefault(phase, time.perf_counter() - began)
    await state.close()
    return times


def _p95(times: Iterator[float] | Sequence[float]) -> float:
    ordered = sorted(times)
    return ordered[math.ceil(0.95 * len(ordered)) - 1]


def _shown(times: Sequence[float]) -> str:
    return " ".join(f"{seconds:.2f}" for seconds in times)


CASES: dict[str, Callable[[BenchFleet, Scale], list[Figure]]] = {
    "behind-chat": lambda fleet, scale: behind(fleet, CHAT, scale),
    "behind-embeddings": lambda fleet, scale: behind(fleet, EMBEDDINGS, scale),
    "one-row": one_row,
    "mixed-lengths": mixed_lengths,
    "phases": phases,
}


def main() -> None:
    """Measure the named cases, or all."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lanes", description=__doc__)
    parser.add_argument("cases", nargs="*", choices=[*CASES, []])
    parser.add_argument("--giant-rows", type=int, default=Scale().giant_rows)
    parser.add_argument("--repeats", type=int, default=Scale().repeats)
    parser.add_argument("--pause", type=float, default=Scale().pause_seconds)
    options = parser.parse_args()
    scale = Scale(options.giant_rows, options.repeats, options.pause)
    figures: list[Figure] = []
    with running_fleet() as fleet:
        for name in options.cases or CASES:
            print(f"measuring  {name}", flush=True)
            figures += CASES[name](fleet, scale)
            publish(figures, _RESULTS)


if __name__ == "__main__":
    main()
