"""Runs the policy of `shared/ordering` on traces in virtual time, and prints what comes of it.

    python -m benchmarks.simulate            10,000 batches of 100 tenants, and the special cases
    python -m benchmarks.simulate --short    the same with fewer batches, in seconds

The engine is a model with seats, KV blocks, a prefix cache and the rates of a 7B model on one H100.
"""

import argparse
import itertools
import json
import math
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import NamedTuple

from shared.ordering.deadlines import Deadline, urgent
from shared.ordering.line import Line
from shared.ordering.prefix_cache import PrefixCache
from shared.ordering.shares import Shares
from shared.ordering.work import Work

_DAY = 86_400.0
_BLOCK_TOKENS = 16
#: Rows that a slice holds at most, and the predicted tokens.
_SLICE_ROWS, _SLICE_TOKENS = 128, 32_768
#: A prompt's shared part is looked at where it is more than this of the row's tokens.
_WORTH = 0.25
#: How often deadlines are looked at, in seconds.
_LOOK_SECONDS = 5.0
#: Sizes by which times are told, in rows.
_SIZES = (10, 100, 1_000, 10_000, 100_000)


class EngineModel(NamedTuple):
    """One engine: 300 tokens in and 128 out at 256 seats are about 85 rows a second."""

    seats: int = 256
    kv_tokens: int = 400_000
    prefill_tokens_per_second: float = 60_000.0
    #: Seconds of a decode step: a constant part, and one for each row in it.
    step_seconds: float = 0.008
    row_seconds: float = 0.000_03

    def step(self, rows: int) -> float:
        return self.step_seconds + self.row_seconds * rows


class Row(NamedTuple):
    """A request; `prefix` names the text that its first `prefix_tokens` share with others."""

    prefix: int
    prefix_tokens: int
    prompt_tokens: int
    output_tokens: int

    @property
    def blocks(self) -> tuple[int, ...]:
        first = self.prefix << 16
        return tuple(range(first, first + self.prefix_tokens // _BLOCK_TOKENS))


def exactly(row: Row) -> float:
    """Predict what comes true."""
    return row.output_tokens


@dataclass
class Batch:
    """A batch of a trace; times are seconds."""

    id: str
    tenant: str
    arrives: float
    rows: Sequence[Row]
    window: float = _DAY
    priority: int = 5
    #: Tokens of output that are predicted of a row.
    predicted: Callable[[Row], float] = exactly
    left: int = field(init=False)
    tokens_left: float = field(init=False)
    ended: float = field(init=False, default=math.inf)
    slices_left: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.left = len(self.rows)
        self.tokens_left = math.fsum(map(self.tokens, self.rows))

    @property
    def deadline(self) -> float:
        return self.arrives + self.window

    def tokens(self, row: Row) -> float:
        return row.prompt_tokens + self.predicted(row)

    def slices(self) -> list[list[int]]:
        """The numbers of the rows of each slice."""
        slices: list[list[int]] = [[]]
        tokens = 0.0
        for number, row in enumerate(self.rows):
            tokens += self.tokens(row)
            if slices[-1] and (len(slices[-1]) == _SLICE_ROWS or tokens > _SLICE_TOKENS):
                slices.append([])
                tokens = self.tokens(row)
            slices[-1].append(number)
        return slices


class _Running(NamedTuple):
    finishes_at: float
    number: int
    batch: Batch
    row: Row
    charged: float
    cached: int


class Fleet:
    """A lane with one engine, in virtual time.

    `is_blind` takes rows in their order, whatever their prompts and lengths. `claimed` is how many
    engines full of rows may wait in front of the engine.
    """

    def __init__(self, model: EngineModel, *, is_blind: bool = False, claimed: float = 2.0) -> None:
        self._model = model
        self._is_blind = is_blind
        self._most_claimed = int(claimed * model.seats)
        blocks = model.kv_tokens // _BLOCK_TOKENS
        self._cache = PrefixCache(blocks)
        self._slices = Line(Shares())
        self._rows = Line(Shares(), PrefixCache(blocks), tokens_per_block=_BLOCK_TOKENS)
        self._contents: dict[tuple[str, int], list[int]] = {}
        self._batches: dict[str, Batch] = {}
        self._running: list[_Running] = []
        self._numbers = itertools.count()
        self._kv_used = 0
        #: Tokens that each row in the engine would have decoded, had it been there from the start.
        self._decoded = 0.0
        self._prefill_seconds = 0.0
        self._looked_at = -math.inf
        self.now = 0.0
        self.idle_seconds = 0.0
        self.rows_done = 0
        #: What the engine computed for each tenant: prompt tokens that were not cached, and output.
        self.computed: defaultdict[str, float] = defaultdict(float)
        self.done_at: list[float] = []

    def run(self, batches: Iterable[Batch], *, until: float = math.inf) -> None:
        """Submit each batch when it arrives; run until all are over, or until a time."""
        coming = sorted(batches, key=lambda batch: batch.arrives)
        for batch in coming:
            if batch.arrives >= until:
                break
            self._pass(batch.arrives)
            self._submit(batch)
        self._pass(until)

    def _submit(self, batch: Batch) -> None:
        self._batches[batch.id] = batch
        slices = batch.slices()
        batch.slices_left = len(slices)
        for number, rows in enumerate(slices):
            self._contents[batch.id, number] = rows
            tokens = math.fsum(batch.tokens(batch.rows[row]) for row in rows)
            self._slices.add(_work(batch, number, tokens))

    def _pass(self, until: float) -> None:
        while self.now < until:
            self._fill()
            if not self._running:
                if until < math.inf:
                    self.idle_seconds += until - self.now
                    self.now = until
                return
            step = self._model.step(len(self._running))
            first = self._running[0]
            ends = self.now + self._prefill_seconds + (first.finishes_at - self._decoded) * step
            if ends > until:
                prefilled = min(until - self.now, self._prefill_seconds)
                self._prefill_seconds -= prefilled
                self._decoded += (until - self.now - prefilled) / step
                self.now = until
                return
            self.now, self._prefill_seconds, self._decoded = ends, 0.0, first.finishes_at
            self._finish(heappop(self._running))

    def _fill(self) -> None:
        if self.now - self._looked_at >= _LOOK_SECONDS:
            self._looked_at = self.now
            self._look_at_deadlines()
        while len(self._running) < self._model.seats:
            self._claim()
            if not len(self._rows):
                return
            work = self._rows.peek(self.now)
            batch = self._batches[work.batch_id]
            row = batch.rows[work.number]
            kv_tokens = row.prompt_tokens + row.output_tokens
            if self._running and self._kv_used + kv_tokens > self._model.kv_tokens:
                return
            _, charged = self._rows.pop(self.now)
            cached = self._cache.match(row.blocks) * _BLOCK_TOKENS
            self._cache.add(row.blocks)
            self._kv_used += kv_tokens
            self._prefill_seconds += (
                row.prompt_tokens - cached
            ) / self._model.prefill_tokens_per_second
            finishes_at = self._decoded + row.output_tokens
            heappush(
                self._running,
                _Running(finishes_at, next(self._numbers), batch, row, charged, cached),
            )

    def _claim(self) -> None:
        while len(self._slices) and len(self._rows) < self._most_claimed:
            slice_, _ = self._slices.pop(self.now)
            batch = self._batches[slice_.batch_id]
            for number in self._contents.pop((batch.id, slice_.number)):
                row = batch.rows[number]
                work = _work(batch, number, batch.tokens(row))
                if not self._is_blind:
                    is_worth_it = row.prefix_tokens > _WORTH * batch.tokens(row)
                    prefix = row.blocks if is_worth_it else ()
                    work = work._replace(prefix=prefix, kind=row.prefix)
                self._rows.add(work)
            batch.slices_left -= 1
            if not batch.slices_left and not self._is_blind:
                self._rows.complete(batch.id)

    def _finish(self, ended: _Running) -> None:
        batch, row = ended.batch, ended.row
        used = row.prompt_tokens - ended.cached + row.output_tokens
        self._kv_used -= row.prompt_tokens + row.output_tokens
        self.computed[batch.tenant] += used
        self.rows_done += 1
        self.done_at.append(self.now)
        self._rows.shares.charge(batch.tenant, used - ended.charged)
        self._slices.shares.charge(batch.tenant, used - batch.tokens(row))
        self._rows.lengths.note(batch.id, row.prefix, row.output_tokens)
        batch.left -= 1
        batch.tokens_left -= batch.tokens(row)
        if not batch.left:
            batch.ended = self.now
            del self._batches[batch.id]

    def _look_at_deadlines(self) -> None:
        busy_seconds = self.now - self.idle_seconds
        rate = sum(self.computed.values()) / busy_seconds if busy_seconds > _LOOK_SECONDS else 0.0
        deadlines = [
            Deadline(batch.id, batch.deadline, batch.tokens_left)
            for batch in self._batches.values()
        ]
        found = urgent(deadlines, now=self.now, tokens_per_second=rate)
        for line in (self._slices, self._rows):
            line.hurry(found, tokens_per_second=rate)


def _work(batch: Batch, number: int, tokens: float) -> Work:
    return Work(
        batch_id=batch.id,
        number=number,
        tenant=batch.tenant,
        priority=batch.priority,
        created_at=batch.arrives,
        expires_at=batch.deadline,
        tokens=tokens,
    )


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
        rows = min(20_000, max(1, int(random_.paretovariate(0.75) * 3)))
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
                    for _ in range(rows)
                ],
            )
        )
    model = EngineModel()
    # The rate at which batches come is such that they take about 0.9 of the engine's time.
    alone = Fleet(model)
    alone.run([Batch("all", "one", 0.0, [row for batch in trace for row in batch.rows])])
    stretch = alone.now / 0.9 / time
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


def backlogged(seed: int, *, tenants: int, seconds: float, hostile: str = "") -> dict[str, float]:
    """Tokens that each tenant had of the engine while all of them had work all the time.

    `hostile` names what the first of them tries in order to have more than its share.
    """
    random_ = random.Random(seed)
    trace: list[Batch] = []
    for tenant in range(tenants):
        trick = hostile if tenant == 0 else ""
        size = 5 if trick == "tiny batches" else random_.choice((500, 2_000, 4_000))
        rows_needed = int(seconds * 120)
        mean, prompt = random_.uniform(3.5, 5.5), random_.randint(50, 600)
        trace += [
            Batch(
                id=f"{tenant}-{number}",
                tenant=f"tenant-{tenant}",
                arrives=0.0,
                rows=[
                    Row(
                        tenant,
                        0,
                        prompt,
                        max(1, min(2048, int(random_.lognormvariate(mean, 0.6)))),
                    )
                    for _ in range(size)
                ],
                window=3600.0 if trick == "short windows" else _DAY,
                priority=9 if trick == "high priority" else 5,
                predicted=(lambda _: 1.0) if trick == "low predictions" else exactly,
            )
            for number in range(math.ceil(rows_needed / size))
        ]
    fleet = Fleet(EngineModel())
    fleet.run(trace, until=seconds)
    return dict(fleet.computed)


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
    blind, ours = _both(mixed_rows, EngineModel(), claimed=2.0, predicted=lambda _: 256.0)
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


def main() -> None:
    """Run all of it and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true", help="fewer batches, some seconds")
    parser.add_argument("--seed", type=int, default=7)
    arguments = parser.parse_args()
    seed, seconds = arguments.seed, 120.0 if arguments.short else 600.0
    shares = backlogged(seed, tenants=20, seconds=seconds)
    report: dict[str, object] = {
        "mixed": mixed(seed, batches=300 if arguments.short else 10_000, tenants=100),
        "jain": round(jain(list(shares.values())), 4),
        "hostile_gain": {},
        "prefixes": round(prefixes(shared=200, each=20, prefix_tokens=1000, seed=seed), 2),
        "nothing_shared": round(prefixes(shared=4000, each=1, prefix_tokens=1000, seed=seed), 2),
        "lengths": [lengths(rows=1500, kinds=kinds, seed=seed) for kinds in (1, 10, 100)],
    }
    gains = {}
    for trick in ("tiny batches", "short windows", "high priority", "low predictions"):
        found = backlogged(seed, tenants=10, seconds=seconds, hostile=trick)
        gains[trick] = round(found["tenant-0"] / (sum(found.values()) / len(found)), 3)
    report["hostile_gain"] = gains
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
