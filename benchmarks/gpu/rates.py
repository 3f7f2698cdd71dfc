"""Rows per second of the fleet beside the bare engine."""

import itertools
import json
import os
import random
import statistics
from collections.abc import Iterator

from benchmarks.figures import Figure, bounded, compared
from benchmarks.gpu.bench import Bench
from benchmarks.gpu.models import EMBED, LARGE, SMALL
from benchmarks.gpu.plan import EMBEDS, SHARED, WIDE
from benchmarks.gpu.texts import between, equal, rows, sharing, text
from benchmarks.rows import CHAT, COMPLETIONS, EMBEDDINGS
from benchmarks.versus import by_batchyard

#: As many small ones as people have who send a batch for each question.
_BATCHES, _ROWS_OF_BATCH = 50, 4
_SECONDS_OF_AN_HOUR = 3600
#: The fleet's setting that lets a file have rows of several endpoints; its planning takes longer.
_SEVERAL_ENDPOINTS = "BATCHYARD_MIXED_BATCHES"


def front(bench: Bench) -> Iterator[Figure]:
    """Rows that cost the card next to nothing, so that what stands before it shows."""
    bench.warm(SMALL)
    count = bench.plan.rows(10_000)
    yield bench.ratio(
        "rows/s, 0.5B, 50 in, 4 out: fleet / bare engine",
        SMALL, lambda: equal(SMALL, count, 50, 4), goal=1.0,
    )  # fmt: skip
    content = equal(SMALL, count, 50, 4)
    as_text = count / bench.by_bare(SMALL, content, as_text=True)
    of_fleet = count / bench.by_fleet(SMALL, content)
    yield compared(
        "the same / bare engine that is given texts instead of tokens",
        of_fleet, as_text, unit="rows/s", goal=1.0, sense="at least",
    )  # fmt: skip


def embeddings(bench: Bench) -> Iterator[Figure]:
    """Embeddings, whose bare engine has one client."""
    bench.warm(EMBED)
    count = bench.plan.rows(40_000)
    yield bench.ratio(
        "rows/s, embeddings of 40 tokens: fleet / bare engine",
        EMBED, lambda: embedding_rows([40] * count), goal=2.0,
    )  # fmt: skip


def small(bench: Bench) -> Iterator[Figure]:
    """A small model whose rows take some steps."""
    count = bench.plan.rows(4_000)
    figure = bench.ratio(
        "rows/s, 0.5B, 100 in, 64 out, 256 seats: fleet / bare engine",
        SMALL, lambda: equal(SMALL, count, 100, 64), goal=1.0,
    )  # fmt: skip
    yield figure
    yield from _cost(bench, "0.5B, 100 in, 64 out", figure, 64)


def large(bench: Bench) -> Iterator[Figure]:
    """A model that fills the card."""
    bench.warm(LARGE)
    # Its beginning and its end cost a second, whatever it has.
    count = bench.plan.rows(10_800)
    figure = bench.ratio(
        "rows/s, 7B, 300 in, 128 out, 256 seats: fleet / bare engine",
        LARGE, lambda: equal(LARGE, count, 300, 128), goal=0.99, turns=1,
    )  # fmt: skip
    yield figure
    yield from _cost(bench, "7B, 300 in, 128 out", figure, 128)
    source = str(bench.plan.sources[LARGE])
    few = count // 3
    content = equal(LARGE, few, 300, 128)
    seconds = bench.by_bare(LARGE, content, "run_batch", source=source, name=LARGE)
    yield compared(
        "rows/s, 7B, 300 in, 128 out: fleet / vllm run-batch on a warm engine",
        figure.value, few / seconds, unit="rows/s", goal=1.0, sense="at least",
    )  # fmt: skip


def many_batches(bench: Bench) -> Iterator[Figure]:
    """Many small batches: one after the other on a loaded engine, and all sent to the fleet."""
    bench.warm(LARGE)
    count, tokens = bench.plan.rows(_BATCHES), 64
    contents = [equal(LARGE, _ROWS_OF_BATCH, 50, tokens) for _ in range(count)]
    paths = [str(bench.file(content)) for content in contents]
    requests = [list(map(json.loads, content.splitlines())) for content in contents]
    bare = bench.bare(LARGE)
    of_fleet, of_bare = list[float](), list[float]()
    for _ in range(bench.plan.turns):
        of_bare.append(sum(bare.ask("file", path=path)["seconds"] for path in paths))
        of_fleet.append(by_batchyard(bench.view, requests))
    rows = count * _ROWS_OF_BATCH
    yield compared(
        f"rows/s, 7B, {count} batches of {_ROWS_OF_BATCH} rows, 50 in, {tokens} out: fleet / bare "
        "engine, one batch after the other",
        rows / statistics.median(of_fleet), rows / statistics.median(of_bare),
        unit="rows/s", goal=2.0, sense="at least",
    )  # fmt: skip


def share(bench: Bench) -> Iterator[Figure]:
    """Several replicas of a small model on one card."""
    replicas, count = bench.plan.replicas, bench.plan.rows(8_000)
    bench.wait_for_replicas(SHARED, replicas)
    bench.warm(SHARED)
    yield bench.ratio(
        f"rows/s, {replicas} replicas of the 0.5B on one card, 100 in, 64 out: fleet / bare engine",
        SHARED, lambda: equal(SHARED, count, 100, 64), goal=2.5, bare=SMALL,
    )  # fmt: skip
    yield bench.ratio(
        f"rows/s, {replicas} replicas of the 0.5B on one card, 50 in, 4 out: fleet / bare engine",
        SHARED, lambda: equal(SHARED, 2 * count, 50, 4), goal=1.0, bare=SMALL,
    )  # fmt: skip


def share_embeddings(bench: Bench) -> Iterator[Figure]:
    """The same for embeddings, where one engine's core is the bound."""
    replicas, count = bench.plan.embed_replicas, bench.plan.rows(50_000)
    bench.wait_for_replicas(EMBEDS, replicas)
    bench.warm(EMBEDS)
    yield bench.ratio(
        f"rows/s, {replicas} replicas on one card, embeddings of 40 tokens: fleet / bare engine",
        EMBEDS, lambda: embedding_rows([40] * count, EMBEDS), goal=2.0, bare=EMBED,
    )  # fmt: skip


def mixed(bench: Bench) -> Iterator[Figure]:
    """Rows of many lengths, in the order of their coming."""
    # As many for each of two endpoints.
    tokens = between(8, 512, bench.plan.rows(2_400) // 2 * 2)
    dice = random.Random(4)

    def of(kind: str, tokens: list[int]) -> bytes:
        return rows(SMALL, kind, [text(100, dice) for _ in tokens], tokens)

    def of_both() -> bytes:
        halves = of(CHAT, tokens[::2]), of(COMPLETIONS, tokens[1::2])
        lines = zip(*(half.splitlines(keepends=True) for half in halves), strict=True)
        return b"".join(itertools.chain.from_iterable(lines))

    yield bench.ratio(
        "rows/s, 0.5B, 100 in, 8 to 512 out: fleet / bare engine",
        SMALL, lambda: of(CHAT, tokens), goal=0.97,
    )  # fmt: skip
    yield bench.ratio(
        "rows/s, 0.5B, completions, 100 in, 8 to 512 out: fleet / bare engine",
        SMALL, lambda: of(COMPLETIONS, tokens), goal=0.97, kind=COMPLETIONS,
    )  # fmt: skip
    if os.environ.get(_SEVERAL_ENDPOINTS) == "true":
        yield bench.ratio(
            "rows/s, 0.5B, chat and completions in one file, 100 in, 8 to 512 out: fleet / bare "
            "engine",
            SMALL, of_both, goal=0.97,
        )  # fmt: skip
    lengths = between(10, 500, bench.plan.rows(30_000))
    yield bench.ratio(
        "rows/s, embeddings of 10 to 500 tokens: fleet / bare engine",
        EMBED, lambda: embedding_rows(lengths), goal=0.97,
    )  # fmt: skip


def wide(bench: Bench) -> Iterator[Figure]:
    """Many seats. The card has no memory for both kinds of more engines at once."""
    bench.remove(SHARED)
    bench.launch_bare(WIDE)
    bench.ended(bench.wake(WIDE))
    bench.warm(WIDE)
    count = bench.plan.rows(5_000)
    try:
        yield bench.ratio(
            "rows/s, 0.5B, 100 in, 64 out, 1,024 seats: fleet / bare engine",
            WIDE, lambda: equal(WIDE, count, 100, 64), goal=1.0,
        )  # fmt: skip
    finally:
        bench.stop_bare(WIDE)
        bench.remove(WIDE)


def prefixes(bench: Bench) -> Iterator[Figure]:
    """Rows that share beginnings, of which the KV cache holds a part."""
    each = max(2, bench.plan.rows(4_000) // 200)
    yield bench.ratio(
        f"rows/s, 7B, 200 prefixes of 1,000 tokens x {each}, shuffled: fleet / bare engine",
        LARGE,
        lambda: sharing(LARGE, prefixes=200, each=each, shared=1_000, own=50, tokens_out=32),
        goal=2.5,
        turns=1,
    )


def embedding_rows(lengths: list[int], model: str = EMBED) -> bytes:
    """Rows of embeddings with texts of these lengths, in tokens."""
    dice = random.Random(len(lengths))
    return rows(model, EMBEDDINGS, [text(length, dice) for length in lengths])


def _cost(bench: Bench, what: str, figure: Figure, tokens: int) -> Iterator[Figure]:
    """What a million tokens of answers cost while the card does nothing else."""
    price = bench.plan.price_per_hour
    if price:
        millions_an_hour = (
            _SECONDS_OF_AN_HOUR * tokens * rate / 1e6 for rate in (figure.value, figure.baseline)
        )
        fleet, bare = (price / millions for millions in millions_an_hour)
        name = f"price of a million tokens of answers, {what}, at {price:g} an hour of the card"
        yield bounded(name, fleet, bare, unit="", goal=None)
