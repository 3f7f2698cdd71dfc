"""Several cards of one machine: an engine on each behind one lane, and one engine over two."""

import time
from collections.abc import Iterator

from benchmarks.figures import Figure, bounded, compared
from benchmarks.gpu.bench import Bench
from benchmarks.gpu.models import LARGE
from benchmarks.gpu.plan import EACH, TENSOR
from benchmarks.gpu.recovery import core_of, wrong_results
from benchmarks.gpu.texts import equal
from benchmarks.gpu.waits import beside_a_batch

_TOKENS_IN, _TOKENS_OUT = 300, 128


def each(bench: Bench) -> Iterator[Figure]:
    """Rows a second of one lane with an engine on each card, over so many times those of one."""
    cards, count = bench.plan.cards, bench.plan.rows(1_200)
    bench.wait_for_replicas(EACH, cards)
    for model in (LARGE, EACH):
        bench.warm(model)
    rates = {model: list[float]() for model in (LARGE, EACH)}
    for turn in range(bench.plan.turns):
        for model in (LARGE, EACH) if turn % 2 == 0 else (EACH, LARGE):
            rows = count if model == LARGE else cards * count
            content = equal(model, rows, _TOKENS_IN, _TOKENS_OUT)
            rates[model].append(rows / bench.by_fleet(model, content))
    yield compared(
        f"rows/s, 7B, 300 in, 128 out: {cards} engines on {cards} cards / {cards} times one",
        sum(rates[EACH]), cards * sum(rates[LARGE]), unit="rows/s", goal=0.95, sense="at least",
    )  # fmt: skip


def live(bench: Bench) -> Iterator[Figure]:
    """Live calls beside a batch that fills the engines of two cards."""
    yield from beside_a_batch(bench, EACH, rows=16_000, replicas=2, settle=5.0)


def kill(bench: Bench) -> Iterator[Figure]:
    """SIGKILL of the core on one card in mid-batch: the others go on."""
    cards, count = bench.plan.cards, bench.plan.rows(2_400)
    content = equal(EACH, count, _TOKENS_IN, _TOKENS_OUT)
    whole = bench.by_fleet(EACH, content)
    core = core_of(bench.replicas(EACH)[0])
    began = time.perf_counter()
    batch = bench.create(EACH, equal(EACH, count, _TOKENS_IN, _TOKENS_OUT))
    time.sleep(whole / 4)
    core.kill()
    batch = bench.ended(batch)
    yield bounded(
        f"seconds of a batch on {cards} cards, one of whose cores is killed after a quarter",
        time.perf_counter() - began, whole, unit="s", goal=None,
    )  # fmt: skip
    yield bounded(
        "its results that are not one for each row, in order",
        wrong_results(bench, batch, count), 0.0, unit="", goal=0,
    )  # fmt: skip


def tensor(bench: Bench) -> Iterator[Figure]:
    """One engine over two cards, which takes both whole: all others have to go."""
    for model in (EACH, LARGE):
        bench.remove(model)
    began = time.perf_counter()
    bench.ended(bench.wake(TENSOR))
    yield bounded(
        "seconds until an engine over two cards has its first rows, nothing compiled",
        time.perf_counter() - began, 0.0, unit="s", goal=None,
    )  # fmt: skip
    bench.warm(TENSOR)
    count = bench.plan.rows(1_200)
    yield bench.ratio(
        "rows/s, 7B, 300 in, 128 out: one engine over two cards / bare engine on one",
        TENSOR, lambda: equal(TENSOR, count, _TOKENS_IN, _TOKENS_OUT), goal=1.0, bare=LARGE,
    )  # fmt: skip
