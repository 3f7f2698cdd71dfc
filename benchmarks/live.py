"""Live calls: what the way through the gateway costs, and what a batch on the same engine costs.

`python -m benchmarks live live-and-batch`. Both sides are measured in turns, in one run.
"""

import asyncio
import math
import threading
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from openai.types import Batch

from benchmarks.bench_fleet import BenchFleet
from benchmarks.figures import Figure, bounded, compared
from benchmarks.live_load import Door, Seen, ask, percentile
from benchmarks.rows import CHAT
from benchmarks.vllm_serve import vllm_serve

#: How many calls, by how many there are at once.
_CALLS = {1: 60, 32: 320}
_TOKENS = 32
_ROW_TOKENS = 128
#: Of a batch's number of rows, for its rate to be told.
_FEWEST_CHANGES = 3
_BURST_SECONDS = 0.5
#: On one engine that a batch fills.
_GOAL_BESIDE = 3.0
#: How many rows a client keeps at a server that has no batches.
_ROWS_AT_ONCE = 256


class Phase(NamedTuple):
    """One side of a comparison: how long it takes, and who calls."""

    #: Of the batch; more than run in the time.
    rows: int = 12_000
    seconds: float = 40.0
    #: So many, each with a pause after an answer.
    people: int = 2
    pause: float = 0.5
    #: Of an answer.
    tokens: int = 48


#: Its name, and what people see among the same rows there.
Without = tuple[str, Callable[[Phase], Seen]]


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


def live_and_batch(
    fleet: BenchFleet, *, turns: int, phase: Phase | None = None, without: Without | None = None
) -> list[Figure]:
    """People beside a batch that fills the engine: here, and where nothing gives way to them.

    That is `without`, or a bare server.
    """
    phase, ours = phase or Phase(), _door(fleet)
    file_id = fleet.upload(CHAT, phase.rows, tokens=_ROW_TOKENS)
    asyncio.run(ask(ours, at_once=2, tokens=4, calls=8))
    alone, beside = Seen(), Seen()
    rates, rates_beside = list[float](), list[float]()
    for _ in range(turns):
        alone.add(_people(ours, phase))
        batch = fleet.create(CHAT, file_id)
        _wait_for_rows(fleet, batch)
        rates.append(_rows_a_second(fleet, batch, lambda: time.sleep(phase.seconds)))
        rates_beside.append(_rows_a_second(fleet, batch, lambda: beside.add(_people(ours, phase))))
        fleet.cancel(batch)
    place, see = without or ("vllm serve", lambda phase: _at_vllm_serve(fleet, phase, turns))
    seen = see(phase)
    return [
        *_ratios("first token of a live call", alone.first, beside.first, place, seen.first),
        *_ratios("next token of a live call", alone.gaps, beside.gaps, place, seen.gaps),
        compared(
            "rows/s of a batch beside live calls / alone",
            sum(rates_beside) / turns,
            sum(rates) / turns or math.inf,
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
    phase_began = time.perf_counter()
    watcher.start()
    do()
    is_over.set()
    watcher.join()
    bursts = _bursts(seen)
    if len(bursts) >= _FEWEST_CHANGES:
        seen = bursts
    if len(seen) < _FEWEST_CHANGES:
        # Too few to tell when rows came: all that did, over all of the time.
        return (seen[-1][1] - seen[0][1]) / (time.perf_counter() - phase_began)
    # The first number was reached at an unknown time.
    (began, before), (ended, after) = seen[1], seen[-1]
    return (after - before) / (ended - began)


def _bursts(seen: list[tuple[float, int]]) -> list[tuple[float, int]]:
    """The last of changes that follow each other closely: many rows of a length end together."""
    last = zip(seen, [*seen[1:], (math.inf, 0)], strict=True)
    return [one for one, following in last if following[0] - one[0] > _BURST_SECONDS]


def _ratios(
    what: str, alone: list[float], beside: list[float], place: str, without: list[float]
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
            f"{what} among the same rows at {place} (baseline: alone here), p{percent}",
            percentile(without, percent),
            baseline,
            unit="ms",
            goal=None,
        )


def _door(fleet: BenchFleet) -> Door:
    url = fleet.fleet.base_url.removesuffix("/v1")
    return Door(url, fleet.models[CHAT], fleet.fleet.credentials.api_key)


def _people(door: Door, phase: Phase) -> Seen:
    return asyncio.run(_asking(door, phase))


async def _asking(door: Door, phase: Phase) -> Seen:
    return await ask(door, at_once=phase.people, tokens=phase.tokens, seconds=phase.seconds,
                     pause=phase.pause)  # fmt: skip


def _at_vllm_serve(fleet: BenchFleet, phase: Phase, turns: int) -> Seen:
    seen, model = Seen(), fleet.models[CHAT]
    with vllm_serve(fleet.catalog, model, fleet.bare_environment) as url:
        bare = Door(url, model)
        asyncio.run(ask(bare, at_once=2, tokens=4, calls=8))
        for _ in range(turns):
            seen.add(asyncio.run(_among_rows(bare, phase)))
    return seen


async def _among_rows(door: Door, phase: Phase) -> Seen:
    """People at a server at which a client keeps many rows."""
    rows = asyncio.create_task(
        ask(door, at_once=_ROWS_AT_ONCE, tokens=_ROW_TOKENS, seconds=phase.seconds + 10)
    )
    await asyncio.sleep(10)
    seen = await _asking(door, phase)
    await rows
    return seen
