"""Waits and shares on one lane: how long five rows take beside a giant batch, and what it loses.

    python -m benchmarks.lanes [CASE …] [--giant-rows N] [--repeats N] [--pause SECONDS]

Everything runs on one fleet, and each ratio compares runs that follow each other. The giant's size
does not matter as long as it lasts: a case stops with an error if its giant ends before it.
"""

import argparse
import math
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from benchmarks.bare import BareEngine
from benchmarks.bench_fleet import BenchFleet, running_fleet
from benchmarks.figures import Figure, bounded, compared, publish
from benchmarks.fixed_work import Taken, fixed_work
from benchmarks.live_load import percentile
from benchmarks.rows import CHAT, EMBEDDINGS
from benchmarks.tenants import Place, Tenant, giants
from benchmarks.token_meter import token_meter

_RESULTS = Path(__file__).parent / "results-lanes.json"
_SMALL_ROWS = 5
_SMALL_TOKENS, _GIANT_TOKENS = 16, 128
_TENANTS = 10
#: How often a giant's rate is measured without small batches and with them, after each other.
_TURNS = 4


class Scale(NamedTuple):
    """How large and how often."""

    giant_rows: int = 50_000
    repeats: int = 10
    #: Between two small batches, so that the giant's loss is that of a few small batches and not of
    #: a stream of them.
    pause_seconds: float = 2.0


def behind(fleet: BenchFleet, kind: str, scale: Scale) -> Iterator[Figure]:
    """Five rows alone, and beside giants of others and of the same tenant.

    Beside each giant, how much longer than alone a process takes for work of its own.
    """
    place = _place(fleet)
    me, *others = [Tenant(place, f"tenant-{number}") for number in range(_TENANTS + 1)]
    file_id = me.upload(kind, [_SMALL_TOKENS] * _SMALL_ROWS)
    me.run(kind, file_id)
    with fixed_work() as work:
        alone = _p95(me.run(kind, file_id).seconds for _ in range(scale.repeats))
        work_alone = work.taken()
    cases = {
        "another tenant's giant": (others[:1], 5, 2.0),
        "another tenant's giant, higher priority": (others[:1], 9, 1.5),
        "the same tenant's giant": ([me], 5, 2.0),
        "the same tenant's giant, higher priority": ([me], 9, 1.5),
        "giants of ten tenants": (others, 5, 2.0),
    }
    for name, (owners, priority, goal) in cases.items():
        with (
            giants(owners, kind, rows=scale.giant_rows, tokens=_GIANT_TOKENS) as running,
            token_meter(fleet, kind) as meter,
            fixed_work() as work,
        ):
            taken: list[float] = []

            def disturb(times: int, taken: list[float] = taken, priority: int = priority) -> int:
                for _ in range(times):
                    taken.append(me.run(kind, file_id, priority=priority).seconds)
                    time.sleep(scale.pause_seconds)
                # Their prompts are in the prefix cache.
                return times * _SMALL_ROWS * (_SMALL_TOKENS if kind == CHAT else 0)

            def wait(times: int) -> int:
                time.sleep(times * scale.pause_seconds)
                return 0

            # In turns, each as often before the other one as behind it: the rate of a giant goes up
            # and down by some percent by itself, and it is another one when the giant is new.
            rates: dict[Callable[[int], int], list[float]] = {wait: [], disturb: []}
            for turn in range(min(_TURNS, scale.repeats)):
                times = len(range(turn, scale.repeats, _TURNS))
                for what in list(rates)[:: -1 if turn % 2 else 1]:
                    rates[what].append(meter.rate(partial(what, times)))
            undisturbed, disturbed = (statistics.mean(found) for found in rates.values())
            work_beside = work.taken()
            # It must not have ended meanwhile.
            running.done()
        title = f"5 rows of {kind} beside {name}"
        print(f"{title}: {_shown(taken)} s; alone p95 {alone:.2f} s", flush=True)
        for with_, found in zip(("without", "with"), rates.values(), strict=True):
            print(
                f"the giant's tokens/s {with_} them, in turns: {_shown(found, ',.0f')}", flush=True
            )
        yield compared(
            f"{title} / alone, p95", _p95(taken), alone, unit="s", goal=goal, sense="at most"
        )
        yield compared(
            f"{title}: the giant's rate / without them", disturbed, undisturbed,
            unit="tokens/s", goal=0.97, sense="at least",
        )  # fmt: skip
        yield _work_beside(title, work_beside, work_alone)


def _work_beside(title: str, beside: list[Taken], alone: list[Taken]) -> Figure:
    """What work of another process takes; prints how much of that it waits for a processor."""
    for what, found in (("beside", beside), ("alone", alone)):
        seconds, busy = zip(*found, strict=True)
        print(
            f"fixed work of another process, {what}: p50 {1e3 * percentile(seconds, 50):.2f} ms,"
            f" p95 {1e3 * percentile(seconds, 95):.2f} ms; of that it has a processor for"
            f" {1e3 * percentile(busy, 50):.2f} and {1e3 * percentile(busy, 95):.2f} ms",
            flush=True,
        )
    return bounded(
        f"{title}: fixed work of another process / alone, p50",
        *(percentile([one.seconds for one in found], 50) for found in (beside, alone)),
        unit="s",
        goal=None,
    )


def one_row(fleet: BenchFleet, scale: Scale) -> list[Figure]:
    """One row on a warm lane, from creation to completion, over its generation alone."""
    me = Tenant(_place(fleet), "one-row")
    file_id = me.upload(CHAT, [_SMALL_TOKENS])
    me.run(CHAT, file_id)
    with BareEngine(fleet.catalog, fleet.models[CHAT], CHAT, fleet.bare_environment) as bare:
        generation = statistics.median(bare.seconds(tokens=_SMALL_TOKENS) for _ in range(5))
    taken = sorted(me.run(CHAT, file_id).seconds for _ in range(10 * scale.repeats))
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
    me = Tenant(_place(fleet), "lengths")
    files = {"mixed": me.upload(CHAT, tokens), "equal": me.upload(CHAT, equal)}
    taken: dict[str, list[float]] = {name: [] for name in files}
    for _ in range(max(1, scale.repeats // 3)):
        for name, file_id in files.items():
            taken[name].append(me.run(CHAT, file_id).seconds)
    return [
        compared("rows of mixed lengths / of equal ones",
                 sum(tokens) / statistics.median(taken["mixed"]),
                 sum(equal) / statistics.median(taken["equal"]),
                 unit="tokens/s", goal=0.9, sense="at least"),
    ]  # fmt: skip


def _place(fleet: BenchFleet) -> Place:
    return Place(fleet.fleet.base_url, fleet.fleet.addresses.redis_url, fleet.models)


def _p95(times: Iterator[float] | Sequence[float]) -> float:
    ordered = sorted(times)
    return ordered[math.ceil(0.95 * len(ordered)) - 1]


def _shown(values: Sequence[float], form: str = ".2f") -> str:
    return " ".join(f"{value:{form}}" for value in values)


CASES: dict[str, Callable[[BenchFleet, Scale], list[Figure]]] = {
    "behind-chat": lambda fleet, scale: list(behind(fleet, CHAT, scale)),
    "behind-embeddings": lambda fleet, scale: list(behind(fleet, EMBEDDINGS, scale)),
    "one-row": one_row,
    "mixed-lengths": mixed_lengths,
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
