"""Runs the policy of `shared/ordering` on traces in virtual time, and prints what comes of it.

    python -m benchmarks.simulate            10,000 batches of 100 tenants, and the special cases
    python -m benchmarks.simulate --short    the same with fewer batches, in seconds

The engine is a model with the rates of a 7B model on one H100.
"""

import argparse
import itertools
import json
import math
import random
from collections.abc import Callable, Mapping, Sequence

from benchmarks.simulated_fleet import DAY, Batch, EngineModel, Fleet, Row, exactly

#: Sizes by which times are told, in rows.
_SIZES = (10, 100, 1_000, 10_000, 100_000)
#: What a tenant may try in order to have more than its share.
TRICKS = (
    "tiny batches",
    "short windows",
    "high priority",
    "low predictions",
    "shared prefixes",
    "all of them",
)
#: For what takes hours: a row a second.
SLOW = EngineModel(seats=8, kv_tokens=25_000, prefill_tokens_per_second=1_500, step_seconds=0.08)


def jain(values: Sequence[float]) -> float:
    """Jain's index of fairness: 1 where all are equal, 1/n where one has everything."""
    return math.fsum(values) ** 2 / (len(values) * math.fsum(value**2 for value in values))


def quantile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def mixed(seed: int, *, batches: int, tenants: int) -> Mapping[str, object]:
    """Tenants of a heavy-tailed kind: most batches are small, most rows are in the large ones."""
    random_ = random.Random(seed)
    trace: list[Batch] = []
    time = 0.0
    for number in range(batches):
        time += random_.expovariate(1.0)
        tenant = f"tenant-{int(tenants * random_.random() ** 2)}"
        count = min(20_000, max(1, int(random_.paretovariate(0.75) * 3)))
        prefix, mean = random_.randrange(1 << 30), random_.uniform(4.0, 5.5)
        prefix_tokens = random_.choice((0, 64, 256, 1024))
        trace.append(
            Batch(
                id=f"batch-{number}",
                tenant=tenant,
                arrives=time,
                rows=[
                    Row(
                        prefix,
                        prefix_tokens,
                        prefix_tokens + random_.randint(20, 400),
                        max(1, min(2048, int(random_.lognormvariate(mean, 0.8)))),
                    )
                    for _ in range(count)
                ],
            )
        )
    model = EngineModel()
    # The rate at which batches come is such that they take about 0.9 of the engine's time. A part
    # of the rows tells how long all of them take.
    rows = [row for batch in trace for row in batch.rows]
    part = max(1, len(rows) // 50_000)
    alone = Fleet(model)
    alone.run([Batch("all", "one", 0.0, rows[::part])])
    stretch = alone.now * part / 0.9 / time
    for batch in trace:
        batch.arrives *= stretch
    fleet = Fleet(model)
    fleet.run(trace)
    times: dict[str, object] = {}
    for low, high in itertools.pairwise((0, *_SIZES)):
        found = [batch.ended - batch.arrives for batch in trace if low < len(batch.rows) <= high]
        if found:
            times[f"<= {high} rows"] = {
                "batches": len(found),
                "p50_seconds": round(quantile(found, 0.5), 1),
                "p99_seconds": round(quantile(found, 0.99), 1),
            }
    return {
        "batches": len(trace),
        "rows": fleet.rows_done,
        "hours": round(fleet.now / 3600, 1),
        "idle": round(fleet.idle_seconds / fleet.now, 3),
        "deadlines_missed": sum(batch.ended > batch.deadline for batch in trace),
        "turnaround": times,
    }


def backlogged(
    seed: int,
    *,
    tenants: int,
    seconds: float,
    hostile: str = "",
    model: EngineModel | None = None,
    rows_per_second: float = 120.0,
) -> dict[str, float]:
    """Tokens that each tenant had of the engine while all of them had work all the time.

    `hostile` is one of TRICKS, which the first of them tries. No tenant can have more rows than
    `rows_per_second`.
    """
    random_ = random.Random(seed)
    trace: list[Batch] = []
    for tenant in range(tenants):
        tried = set(TRICKS if hostile == "all of them" else (hostile,)) if tenant == 0 else set()
        is_tiny = "tiny batches" in tried
        size = 5 if is_tiny else random_.choice((500, 2_000, 4_000))
        shared = 512 if "shared prefixes" in tried else 0
        mean, prompt = random_.uniform(3.5, 5.5), random_.randint(50, 600)
        # Enough for its share twice, and at most as much as the engine can do.
        count = math.ceil(seconds * rows_per_second * min(1.0, 3 / tenants) / size)
        trace += [
            Batch(
                id=f"{tenant}-{number}",
                tenant=f"tenant-{tenant}",
                arrives=number * seconds / count / 2 if is_tiny else 0.0,
                rows=[
                    Row(
                        tenant,
                        shared,
                        shared + prompt,
                        max(1, min(2048, int(random_.lognormvariate(mean, 0.6)))),
                    )
                    for _ in range(size)
                ],
                window=3600.0 if "short windows" in tried else DAY,
                priority=9 if "high priority" in tried else 5,
                predicted=(lambda _: 1.0) if "low predictions" in tried else exactly,
            )
            for number in range(count)
        ]
    fleet = Fleet(model or EngineModel())
    fleet.run(trace, until=seconds)
    return dict(fleet.computed)


def gain(shares: Mapping[str, float]) -> float:
    """What the first tenant had, as a multiple of its share."""
    return shares["tenant-0"] / (math.fsum(shares.values()) / len(shares))


def hostile_gains(seed: int, *, seconds: float) -> dict[str, float]:
    """What each of TRICKS brings a tenant beside nine honest ones."""
    gains = {
        trick: gain(backlogged(seed, tenants=10, seconds=seconds, hostile=trick))
        for trick in TRICKS
        if trick not in ("short windows", "all of them")
    }
    # Windows are minutes long, so these take about a day.
    for trick in ("short windows", "all of them"):
        found = backlogged(
            seed, tenants=10, seconds=200 * seconds, hostile=trick, model=SLOW, rows_per_second=1.5
        )
        gains[trick] = gain(found)
    return {trick: round(found, 3) for trick, found in gains.items()}


def prefixes(*, shared: int, each: int, prefix_tokens: int, seed: int) -> float:
    """Rows a second of shuffled rows in our order, as a multiple of arrival order."""
    rows = [
        Row(prefix, prefix_tokens, prefix_tokens + 40, 32)
        for prefix in range(shared)
        for _ in range(each)
    ]
    random.Random(seed).shuffle(rows)
    blind, ours = _both(rows, EngineModel(kv_tokens=125_000), claimed=len(rows))
    return blind.now / ours.now


def lengths(*, rows: int, kinds: int, seed: int) -> dict[str, float]:
    """The same of rows of 16 to 1,024 tokens of output, and how long the last 1 % of them take.

    The kind of a row is its system prompt, and decides the length within a factor of two; the
    lengths of a kind are only learned while the rows run.
    """
    random_ = random.Random(seed)
    middles = [random_.uniform(4.5, 9.5) for _ in range(kinds)]
    mixed_rows = [
        Row(kind, 16, 100, int(2 ** random_.uniform(middles[kind] - 0.5, middles[kind] + 0.5)))
        for kind in (random_.randrange(kinds) for _ in range(rows))
    ]
    blind, ours = _both(mixed_rows, EngineModel(), claimed=8.0, predicted=lambda _: 256.0)
    first_of_last = ours.done_at[-max(1, rows // 100)]
    return {
        "gain": round(blind.now / ours.now, 3),
        "last_percent": round((ours.now - first_of_last) / ours.now, 3),
        "last_percent_before": round(
            (blind.now - blind.done_at[-max(1, rows // 100)]) / blind.now, 3
        ),
    }


def _both(
    rows: Sequence[Row],
    model: EngineModel,
    *,
    claimed: float,
    predicted: Callable[[Row], float] = exactly,
) -> tuple[Fleet, Fleet]:
    """One batch of these rows in arrival order, and in ours."""
    fleets = Fleet(model, is_blind=True, claimed=claimed), Fleet(model, claimed=claimed)
    for fleet in fleets:
        fleet.run([Batch("one", "one", 0.0, rows, predicted=predicted)])
    return fleets


def report(seed: int, *, is_short: bool) -> dict[str, object]:
    """All of it."""
    seconds = 120.0 if is_short else 432.0
    shares = backlogged(seed, tenants=20, seconds=seconds)
    return {
        "mixed": mixed(seed, batches=300 if is_short else 10_000, tenants=100),
        "jain": round(jain(list(shares.values())), 4),
        "hostile_gain": hostile_gains(seed, seconds=seconds),
        "prefixes": round(prefixes(shared=200, each=20, prefix_tokens=1000, seed=seed), 2),
        "nothing_shared": round(prefixes(shared=4000, each=1, prefix_tokens=1000, seed=seed), 2),
        "lengths": [lengths(rows=1500, kinds=kinds, seed=seed) for kinds in (1, 10, 100)],
    }


def main() -> None:
    """Print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true", help="fewer batches, some seconds")
    parser.add_argument("--seed", type=int, default=7)
    arguments = parser.parse_args()
    print(json.dumps(report(arguments.seed, is_short=arguments.short), indent=2))


if __name__ == "__main__":
    main()
