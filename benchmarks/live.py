"""Live calls: what the way through the gateway costs, and what a batch on the same engine costs.

`python -m benchmarks live live-and-batch`. Both sides are measured in turns, in one run.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator

from openai.types import Batch

from benchmarks.bench_fleet import MODELS, BenchFleet
from benchmarks.figures import Figure, bounded, compared
from benchmarks.live_load import Door, Seen, ask, percentile
from benchmarks.rows import CHAT
from benchmarks.vllm_serve import vllm_serve

#: How many calls, by how many there are at once.
_CALLS = {1: 60, 32: 320}
_TOKENS = 32
#: People beside the batch: so many, each with a pause after an answer.
_PEOPLE, _PAUSE_SECONDS, _ANSWER_TOKENS = 2, 0.5, 48
_PHASE_SECONDS = 40.0
_ROWS, _ROW_TOKENS = 12_000, 128
#: On one engine that a batch fills.
_GOAL_BESIDE = 3.0
#: How many rows a client keeps at a server that has no batches.
_ROWS_AT_ONCE = 256


def live_calls(fleet: BenchFleet, *, turns: int) -> list[Figure]:
    """Time to the first token and calls a second: the gateway beside a bare `vllm serve`."""
    ours = _door(fleet)
    with vllm_serve(fleet.catalog, ours.model, fleet.bare_environment) as url:
        bare = Door(url, ours.model)
        return [
            figure
            for at_once in _CALLS
            for figure in asyncio.run(_beside(ours, bare, at_once, turns))
        ]


async def _beside(ours: Door, bare: Door, at_once: int, turns: int) -> list[Figure]:
    seen = {ours: Seen(), bare: Seen()}
    for door in seen:
        await ask(door, at_once=at_once, tokens=_TOKENS, calls=_CALLS[at_once] // 4)
    for _ in range(turns):
        for door, all_ in seen.items():
            all_.add(await ask(door, at_once=at_once, tokens=_TOKENS, calls=_CALLS[at_once]))
    first, of_bare = (percentile(seen[door].first, 50) for door in (ours, bare))
    return [
        bounded(
            f"first token by the gateway less by vllm serve, p50, {at_once} at once "
            "(baseline: vllm serve)",
            first - of_bare,
            of_bare,
            unit="ms",
            goal=5 if at_once == 1 else 10,
        ),
        compared(
            f"live calls/s by the gateway / vllm serve, {at_once} at once",
            seen[ours].rate,
            seen[bare].rate,
            unit="calls/s",
            goal=0.9,
            sense="at least",
        ),
    ]


def live_and_batch(fleet: BenchFleet, *, turns: int) -> list[Figure]:
    """People beside a batch that fills the engine: here, and at a bare server that takes turns."""
    ours = _door(fleet)
    file_id = fleet.upload(CHAT, _ROWS, tokens=_ROW_TOKENS)
    asyncio.run(ask(ours, at_once=2, tokens=4, calls=8))
    alone, beside, without = Seen(), Seen(), Seen()
    rates, rates_beside = list[float](), list[float]()
    for _ in range(turns):
        alone.add(_people(ours))
        batch = fleet.create(CHAT, file_id)
        _wait_for_rows(fleet, batch)
        rates.append(_rows_a_second(fleet, batch, lambda: time.sleep(_PHASE_SECONDS)))
        rates_beside.append(_rows_a_second(fleet, batch, lambda: beside.add(_people(ours))))
        fleet.cancel(batch)
    with vllm_serve(fleet.catalog, ours.model, fleet.bare_environment) as url:
        bare = Door(url, ours.model)
        asyncio.run(ask(bare, at_once=2, tokens=4, calls=8))
        for _ in range(turns):
            without.add(asyncio.run(_among_rows(bare)))
    return [
        *_ratios("first token of a live call", alone.first, beside.first, without.first),
        *_ratios("next token of a live call", alone.gaps, beside.gaps, without.gaps),
        compared(
            "rows/s of a batch beside live calls / alone",
            sum(rates_beside) / turns,
            sum(rates) / turns,
            unit="rows/s",
            goal=0.85,
            sense="at least",
        ),
    ]


def _wait_for_rows(fleet: BenchFleet, batch: Batch) -> None:
    while not (batch.request_counts and batch.request_counts.completed):
        time.sleep(0.2)
        batch = fleet.client.batches.retrieve(batch.id)


def _rows_a_second(fleet: BenchFleet, batch: Batch, do: Callable[[], object]) -> float:
    """The batch's rate while something is done, from its first progress meanwhile to its last."""
    seen = list[tuple[float, int]]()
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.wait(0.1):
            counts = fleet.client.batches.retrieve(batch.id).request_counts
            assert counts is not None
            if not seen or counts.completed > seen[-1][1]:
                seen.append((time.perf_counter(), counts.completed))

    watcher = threading.Thread(target=watch)
    watcher.start()
    do()
    is_over.set()
    watcher.join()
    # The first number was reached at an unknown time.
    (began, before), (ended, after) = seen[1], seen[-1]
    return (after - before) / (ended - began)


def _ratios(
    what: str, alone: list[float], beside: list[float], without: list[float]
) -> Iterator[Figure]:
    for percent in (50, 99):
        baseline = percentile(alone, percent)
        yield compared(
            f"{what} beside a batch / alone, p{percent}",
            percentile(beside, percent),
            baseline,
            unit="ms",
            goal=_GOAL_BESIDE,
            sense="at most",
        )
        yield bounded(
            f"{what} among the same rows at vllm serve (baseline: alone here), p{percent}",
            percentile(without, percent),
            baseline,
            unit="ms",
            goal=None,
        )


def _door(fleet: BenchFleet) -> Door:
    url = fleet.fleet.base_url.removesuffix("/v1")
    return Door(url, MODELS[CHAT], fleet.fleet.credentials.api_key)


def _people(door: Door) -> Seen:
    return asyncio.run(
        ask(door, at_once=_PEOPLE, tokens=_ANSWER_TOKENS, seconds=_PHASE_SECONDS,
            pause=_PAUSE_SECONDS)
    )  # fmt: skip


async def _among_rows(door: Door) -> Seen:
    """People at a server at which a client keeps many rows."""
    rows = asyncio.create_task(
        ask(door, at_once=_ROWS_AT_ONCE, tokens=_ROW_TOKENS, seconds=_PHASE_SECONDS + 10)
    )
    await asyncio.sleep(10)
    seen = await ask(door, at_once=_PEOPLE, tokens=_ANSWER_TOKENS, seconds=_PHASE_SECONDS,
                     pause=_PAUSE_SECONDS)  # fmt: skip
    await rows
    return seen
