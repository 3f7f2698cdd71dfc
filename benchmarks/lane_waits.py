"""What a batch waits for besides the engine: `python -m benchmarks.lane_waits [CASE …]`.

The whole fleet runs on real servers, and a scripted engine with the pace of a 7B model on an H100
takes the place of Ray and vLLM. It notes when rows reach it, so that the time before it is measured
apart from the time in it, which depends on the hardware.
"""

import argparse
import asyncio
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path

from benchmarks.figures import Figure, bounded, compared, publish
from benchmarks.rows import CHAT
from benchmarks.scripted_engine import Pace, Report, report
from benchmarks.scripted_fleet import MODEL, ScriptedFleet, running_scripted_fleet
from benchmarks.tenants import Place, Run, Tenant, giants

_RESULTS = Path(__file__).parent / "results-lanes.json"
_HOST = "127.0.0.1"
_SMALL = [16] * 5
_MEDIUM = [16] * 100
_GIANT_TOKENS, _GIANT_WORDS = 128, 180
#: More rows than the engine runs in a case.
_GIANT_ROWS = 12_000
_TRIES = 10
#: Between two small batches, so that they do not follow the giant's rhythm.
_PAUSE_SECONDS = 0.3
_TENANTS = 10
#: Between tenants a slice is the unit, and each tenant has had six by then. It takes two minutes.
_FAIR_AFTER_TOKENS = 4_000_000
_CANCELLED_ROWS, _CANCELLATIONS = 50_000, 3
_SMALL_BATCHES, _TURNS = 200, 2


class Bench:
    """The fleet, and what is measured on it."""

    def __init__(self, fleet: ScriptedFleet) -> None:
        self._fleet = fleet
        self._place = Place(fleet.base_url, fleet.redis_url, {CHAT: MODEL})

    def tenant(self, name: str) -> Tenant:
        return Tenant(self._place, name)

    def report(self) -> Report:
        return asyncio.run(report(_HOST, self._fleet.engine_port))

    def waits(self, title: str, runs: Sequence[Run]) -> list[Figure]:
        """From the creation of these batches until their rows reach the engine."""
        engine = self.report()
        before = [engine.came_at[run.batch_id] - run.began_at for run in runs]
        after = [run.ended_at - engine.left_at[run.batch_id] for run in runs]
        took = statistics.median(run.seconds for run in runs)
        print(f"{title}: {_shown(before)} s before the engine", flush=True)
        return [
            bounded(f"{title}: before the engine, p50", statistics.median(before), took, unit="s",
                    goal=0.15),
            bounded(f"{title}: before the engine, p95", _part(before, 0.95), took, unit="s",
                    goal=0.5),
            bounded(f"{title}: after the engine, p50", statistics.median(after), took, unit="s",
                    goal=None),
        ]  # fmt: skip


def behind(bench: Bench) -> list[Figure]:
    """Batches alone, and beside a giant of another tenant and of their own."""
    me, big = bench.tenant("behind"), bench.tenant("behind-giant")
    figures = bench.waits("5 rows alone", _runs(me, _SMALL))
    with giants([big], CHAT, rows=_GIANT_ROWS, tokens=_GIANT_TOKENS, words=_GIANT_WORDS):
        figures += bench.waits("5 rows beside another tenant's giant", _runs(me, _SMALL))
        figures += bench.waits("5 rows beside the same tenant's giant", _runs(big, _SMALL))
        figures += bench.waits(
            "100 rows beside another tenant's giant", _runs(me, _MEDIUM, tries=5)
        )
        figures += bench.waits(
            "100 rows beside the same tenant's giant", _runs(big, _MEDIUM, tries=5)
        )
    return figures


def ten_tenants(bench: Bench) -> list[Figure]:
    """Tenants that begin together, and a small batch of another one beside them."""
    me, many = bench.tenant("ten"), [bench.tenant(f"ten-{number}") for number in range(_TENANTS)]
    files = [one.upload(CHAT, [_GIANT_TOKENS] * 2000, words=_GIANT_WORDS) for one in many]
    batches = [one.create(CHAT, file) for one, file in zip(many, files, strict=True)]
    time.sleep(_PAUSE_SECONDS)
    figures = bench.waits("5 rows beside giants of ten tenants", _runs(me, _SMALL))
    each = _computed_by(bench, many)
    while sum(each) < _FAIR_AFTER_TOKENS:
        time.sleep(_PAUSE_SECONDS)
        each = _computed_by(bench, many)
    for one, batch in zip(many, batches, strict=True):
        one.cancel(batch)
    fairness = sum(each) ** 2 / (len(each) * sum(tokens**2 for tokens in each))
    title = f"Jain's index of ten tenants' shares of {_FAIR_AFTER_TOKENS:,} tokens"
    return [*figures, compared(title, fairness, 1.0, unit="", goal=0.98, sense="at least")]


def cancellations(bench: Bench) -> list[Figure]:
    """Of a giant batch under way; and what runs next."""
    me, big = bench.tenant("cancelling"), bench.tenant("cancelling-next")
    file_id = big.upload(CHAT, [_GIANT_TOKENS] * _CANCELLED_ROWS, words=_GIANT_WORDS)
    small = me.upload(CHAT, _SMALL)
    taken, runs = [], []
    for turn in range(_CANCELLATIONS):
        batch = big.create(CHAT, file_id)
        while not (counts := batch.request_counts) or not counts.completed:
            time.sleep(0.1)
            batch = big.client.batches.retrieve(batch.id)
        # A wave takes seconds to start: before its first row, and after it.
        time.sleep(3 * turn)
        taken.append(big.cancel(batch))
        runs.append(me.run(CHAT, small))
    title = f"until a cancellation of {_CANCELLED_ROWS:,} rows is over, worst of {len(taken)}"
    worst = bounded(title, max(taken), statistics.median(taken), unit="s", goal=3.0)
    return [worst, *bench.waits("5 rows after such a cancellation", runs)]


def small_batches(bench: Bench) -> list[Figure]:
    """Many small batches against one of as many rows, in turns."""
    me = bench.tenant("small")
    large = me.upload(CHAT, [64] * _SMALL_BATCHES * 5)
    files = [me.upload(CHAT, [64] * 5) for _ in range(_SMALL_BATCHES)]
    one, many = [], []
    with ThreadPoolExecutor(8) as pool:
        for _ in range(_TURNS):
            one.append(me.run(CHAT, large).seconds)
            began = time.time()
            ids = {batch.id for batch in pool.map(lambda file: me.create(CHAT, file), files)}
            while ids:
                time.sleep(0.1)
                newest = islice(me.client.batches.list(limit=100), _SMALL_BATCHES)
                ids -= {batch.id for batch in newest if batch.status == "completed"}
            many.append(time.time() - began)
    return [
        compared("200 batches x 5 rows / 1 batch x 1000 rows", statistics.median(many),
                 statistics.median(one), unit="s", goal=1.15, sense="at most"),
    ]  # fmt: skip


def one_row(bench: Bench) -> list[Figure]:
    """One row at a time, over its generation."""
    me, pace, tokens = bench.tenant("one-row"), Pace(), 16
    generation = pace.seconds(1, 100) + (tokens - 1) * pace.seconds(1, 0)
    file_id = me.upload(CHAT, [tokens])
    over = [me.run(CHAT, file_id).seconds - generation for _ in range(4 * _TRIES)]
    return [
        bounded("one row, warm, over its generation, p50", statistics.median(over), generation,
                unit="s", goal=0.2),
        bounded("one row, warm, over its generation, p99", _part(over, 0.99), generation, unit="s",
                goal=1.0),
    ]  # fmt: skip


def _computed_by(bench: Bench, tenants: Sequence[Tenant]) -> list[float]:
    """The tokens that the engine has computed for each tenant."""
    computed = bench.report().computed
    return [computed.get(tenant.name, 0.0) for tenant in tenants]


def _runs(tenant: Tenant, tokens: Sequence[int], *, tries: int = _TRIES) -> list[Run]:
    file_id = tenant.upload(CHAT, tokens)
    return list(_one_by_one(tenant, file_id, tries))


def _one_by_one(tenant: Tenant, file_id: str, tries: int) -> Iterator[Run]:
    for _ in range(tries):
        yield tenant.run(CHAT, file_id)
        time.sleep(_PAUSE_SECONDS)


def _part(times: Sequence[float], part: float) -> float:
    return sorted(times)[math.ceil(part * len(times)) - 1]


def _shown(times: Sequence[float]) -> str:
    return " ".join(f"{seconds:.2f}" for seconds in times)


CASES: dict[str, Callable[[Bench], list[Figure]]] = {
    "one-row": one_row,
    "behind": behind,
    "ten-tenants": ten_tenants,
    "small-batches": small_batches,
    "cancellations": cancellations,
}


def lane_waits(names: Sequence[str] = ()) -> list[Figure]:
    """Measure the named cases, or all."""
    figures: list[Figure] = []
    with running_scripted_fleet() as fleet:
        bench = Bench(fleet)
        # The first batch waits for the lane job.
        warm = bench.tenant("warm")
        warm.run(CHAT, warm.upload(CHAT, _SMALL))
        for name in names or CASES:
            print(f"measuring  {name}", flush=True)
            figures += CASES[name](bench)
    return figures


def main() -> None:
    """Measure, and write benchmarks/results-lanes.json."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lane_waits", description=__doc__)
    parser.add_argument("cases", nargs="*", choices=[*CASES, []])
    publish(lane_waits(parser.parse_args().cases), _RESULTS)


if __name__ == "__main__":
    main()
