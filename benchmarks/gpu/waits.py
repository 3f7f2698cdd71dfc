"""What small batches, the end of a batch, and live calls wait for on real engines."""

import random
import statistics
import time
from collections.abc import Iterator

from openai.types import Batch

from benchmarks.bench_fleet import BenchFleet
from benchmarks.figures import Figure, bounded, compared
from benchmarks.gpu.bench import Bench
from benchmarks.gpu.models import EMBED, LARGE, SMALL
from benchmarks.gpu.texts import between, equal, rows, text
from benchmarks.lanes import Scale, behind
from benchmarks.live import live_calls
from benchmarks.live_and_batch import Phase, live_and_batch
from benchmarks.live_load import Seen, percentile
from benchmarks.rows import CHAT, EMBEDDINGS
from benchmarks.small_batches import small_batches


def lanes(bench: Bench) -> Iterator[Figure]:
    """One row, many small batches, and the last rows of a batch."""
    large, small = bench.view_of(LARGE, EMBED), bench.view_of(SMALL, EMBED)
    yield from _one_row(bench, large)
    batches = max(10, int(200 * bench.plan.scale))
    yield from small_batches(small, turns=bench.plan.turns, batches=batches)
    yield _ending(bench)


def beside_giants(bench: Bench) -> Iterator[Figure]:
    """Five rows beside giants of others and of the same tenant."""
    view = bench.view_of(LARGE, EMBED)
    scale = Scale(
        giant_rows=max(4_000, bench.plan.rows(15_000)),
        repeats=20 if bench.plan.scale == 1 else 2,
        pause_seconds=min(1.0, bench.plan.seconds(1.0)),
    )
    yield from behind(view, CHAT, scale)
    # An engine answers thousands of them a second, and all shall last until the end.
    many = scale._replace(giant_rows=max(10_000, bench.plan.rows(600_000)))
    yield from behind(view, EMBEDDINGS, many)


def live(bench: Bench) -> Iterator[Figure]:
    """Live calls alone, beside a batch, and beside rows to which nothing gives way."""
    yield from beside_a_batch(bench, LARGE, rows=12_000, replicas=1)


def beside_a_batch(
    bench: Bench, model: str, *, rows: int, replicas: int, settle: float = 0.0
) -> Iterator[Figure]:
    """The same of a model with so many engines, which such a batch keeps full all the time."""
    bare_rows = equal(LARGE, bench.plan.rows(2_000), 100, 128)
    phase = Phase(
        rows=max(2_000, bench.plan.rows(rows)), seconds=bench.plan.seconds(25), settle=settle
    )

    def on_bare(phase: Phase) -> Seen:
        found = bench.bare(LARGE).ask(
            "live", path=str(bench.file(bare_rows)), seconds=phase.seconds, people=phase.people,
            pause=phase.pause, tokens=phase.tokens,
        )  # fmt: skip
        return Seen(found["first"], found["gaps"])

    yield from live_and_batch(
        bench.view_of(model, EMBED),
        turns=1,
        phase=phase,
        without=("the bare engine", on_bare),
        replicas=replicas,
    )


def door(bench: Bench) -> Iterator[Figure]:
    """What the way through the gateway costs a live call; beside the same model's `vllm serve`."""
    bench.stop_bare(LARGE)
    yield from live_calls(bench.view_of(LARGE, EMBED), turns=1)


def _one_row(bench: Bench, view: BenchFleet) -> Iterator[Figure]:
    path = str(bench.file(equal(LARGE, 1, 50, 16)))
    generation = statistics.median(bench.bare(LARGE).ask("file", path=path)["seconds"]
                                   for _ in range(5))  # fmt: skip
    file = bench.file_id(equal(LARGE, 1, 50, 16))
    taken = [view.seconds(CHAT, file) for _ in range(bench.plan.rows(50))]
    for percent, goal in ((50, 0.2), (99, 1.0)):
        yield bounded(
            f"one row, 7B, warm, from creation to completion, p{percent}, less its generation "
            "(baseline: bare engine)",
            percentile(taken, percent) - generation, generation, unit="s", goal=goal,
        )  # fmt: skip


def _ending(bench: Bench) -> Figure:
    """How much of a batch's time its last rows take."""
    dice = random.Random(9)
    tokens = between(8, 512, bench.plan.rows(3_000))
    content = rows(SMALL, CHAT, [text(100, dice) for _ in tokens], tokens)
    began, most_at = time.perf_counter(), [0.0]

    def see(batch: Batch) -> None:
        counts = batch.request_counts
        if counts and counts.completed >= 0.99 * len(tokens) and not most_at[0]:
            most_at[0] = time.perf_counter() - began

    began = time.perf_counter()
    seconds = bench.by_fleet(SMALL, content, see)
    whole = time.perf_counter() - began
    return compared(
        "the last 1 % of rows of 8 to 512 tokens, 0.5B / time of their batch",
        whole - most_at[0], seconds, unit="s", goal=0.03, sense="at most",
    )  # fmt: skip
