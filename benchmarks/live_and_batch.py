"""What a batch on the same engines costs live calls, and they the batch.

`python -m benchmarks live-and-batch live-and-batch-2`: on one engine, and on two. All sides are
measured in turns, in one run.
"""

import asyncio
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import NamedTuple

from openai.types import Batch

from benchmarks.bench_fleet import FINAL, BenchFleet, running_fleet
from benchmarks.figures import Figure, bounded, compared
from benchmarks.live_load import Door, Seen, ask, door_of, percentile
from benchmarks.row_rates import rate_during
from benchmarks.rows import CHAT
from benchmarks.vllm_serve import vllm_serve
from shared.state import State

_ROW_TOKENS = 128
#: Of times beside a batch to those alone, on engines that a batch fills, by their number.
_GOAL_BESIDE = {1: 3.0, 2: 1.36}
#: Of a batch's own rate: what is left of it beside people.
_GOAL_RATE = 0.85
#: Within so many seconds what replicas have counted is in Redis.
_TOLD_SECONDS = 12
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
    #: Beside a batch, before anything counts: the rows that ran when people came end meanwhile.
    settle: float = 0.0
    #: Of an answer.
    tokens: int = 48


#: Its name, and what people see among the same rows there.
Without = tuple[str, Callable[[Phase], Seen]]


def live_and_batch_on_two(*, turns: int, phase: Phase | None = None) -> list[Figure]:
    """The same with two engines, of a fleet of its own."""
    with running_fleet(replicas=2) as fleet:
        fleet.seconds(CHAT, fleet.upload(CHAT, 1, tokens=16))
        fleet.wait_for_replicas(CHAT, 2)
        return live_and_batch(fleet, turns=turns, phase=phase, replicas=2)


def live_and_batch(
    fleet: BenchFleet,
    *,
    turns: int,
    phase: Phase | None = None,
    without: Without | None = None,
    replicas: int = 1,
) -> list[Figure]:
    """People beside a batch that fills the engines: here, and where nothing gives way to them.

    That is `without`, or bare servers, as many as there are replicas.
    """
    phase, ours = phase or Phase(), door_of(fleet)
    file_id = fleet.upload(CHAT, phase.rows, tokens=_ROW_TOKENS)
    asyncio.run(ask(ours, at_once=2, tokens=4, calls=8))
    alone, beside = Seen(), Seen()
    rates, rates_beside = list[float](), list[float]()
    in_time, due = 0, 0
    # Of several engines, people have one to themselves.
    due_part = _GOAL_RATE * (1 if replicas == 1 else 1 - 1 / replicas)

    def see_beside() -> None:
        if phase.settle:
            _people(ours, phase._replace(seconds=phase.settle))
        beside.add(_people(ours, phase))

    before = asyncio.run(_computed(fleet))
    for _ in range(turns):
        alone.add(_people(ours, phase))
        batch = fleet.create(CHAT, file_id)
        _wait_for_rows(fleet, batch)
        rates.append(_rows_a_second(fleet, batch, lambda: time.sleep(phase.seconds)))
        rates_beside.append(_rows_a_second(fleet, batch, see_beside))
        fleet.cancel(batch)
        rows = max(1, int(due_part * rates[-1] * phase.seconds))
        in_time += _rows_by_deadline(fleet, ours, phase, rows)
        due += rows
    time.sleep(_TOLD_SECONDS)
    again, computed = (
        after - then for after, then in zip(asyncio.run(_computed(fleet)), before, strict=True)
    )
    name = "vllm serve" if replicas == 1 else f"{replicas} vllm serve"
    place, see = without or (name, lambda phase: _at_vllm_serve(fleet, phase, turns, replicas))
    seen = see(phase)
    goal = _GOAL_BESIDE[replicas]
    figures = [
        *_ratios("first token of a live call", alone.first, beside.first, place, seen.first, goal),
        *_ratios("next token of a live call", alone.gaps, beside.gaps, place, seen.gaps, goal),
        compared(
            "rows/s of a batch beside live calls / alone",
            sum(rates_beside) / turns,
            sum(rates) / turns or math.inf,
            unit="rows/s",
            goal=due_part,
            sense="at least",
        ),
        compared(
            f"rows in deadline beside live calls / those due ({due_part:.2g} of the rate alone)",
            in_time,
            due,
            unit="rows",
            goal=1.0,
            sense="at least",
        ),
        bounded(
            "recompute share: tokens computed again / computed", again, computed, unit="tokens",
            goal=None,
        ),
    ]  # fmt: skip
    return figures if replicas == 1 else [_named(one, f"{replicas} engines") for one in figures]


def _named(figure: Figure, more: str) -> Figure:
    return replace(figure, name=f"{figure.name}, {more}")


def _rows_by_deadline(fleet: BenchFleet, door: Door, phase: Phase, rows: int) -> int:
    """How many rows of a batch of so many have a result when a phase with people is over."""
    file_id = fleet.upload(CHAT, rows, tokens=_ROW_TOKENS)
    people = threading.Thread(target=_people, args=(door, phase))
    people.start()
    deadline = time.perf_counter() + phase.seconds
    batch = fleet.create(CHAT, file_id)
    while time.perf_counter() < deadline and batch.status not in FINAL:
        time.sleep(0.1)
        batch = fleet.client.batches.retrieve(batch.id)
    people.join()
    if batch.status not in FINAL:
        fleet.cancel(batch)
    assert batch.request_counts is not None
    return batch.request_counts.completed


async def _computed(fleet: BenchFleet) -> tuple[int, int]:
    """Tokens that the model's engines have computed again after preemptions, and all of them."""
    state = State(fleet.fleet.addresses.redis_url)
    totals = (await state.census.take()).totals
    await state.close()
    again, computed = (
        sum(one.number for one in totals
            if one.what == what and one.lane.startswith(f"{fleet.models[CHAT]}@"))
        for what in ("recomputed_tokens", "computed_tokens")
    )  # fmt: skip
    return again, computed


def _wait_for_rows(fleet: BenchFleet, batch: Batch) -> None:
    while not (batch.request_counts and batch.request_counts.completed):
        time.sleep(0.2)
        batch = fleet.client.batches.retrieve(batch.id)


def _rows_a_second(fleet: BenchFleet, batch: Batch, do: Callable[[], object]) -> float:
    def done() -> int:
        counts = fleet.client.batches.retrieve(batch.id).request_counts
        assert counts is not None
        return counts.completed

    return rate_during(do, done)


def _ratios(
    what: str,
    alone: list[float],
    beside: list[float],
    place: str,
    without: list[float],
    goal: float,
) -> Iterator[Figure]:
    for percent in (50, 99):
        baseline = percentile(alone, percent)
        yield compared(
            f"{what} beside a batch / alone, p{percent}",
            percentile(beside, percent),
            baseline,
            unit="ms",
            goal=goal,
            sense="at most",
        )
        yield bounded(
            f"{what} among the same rows at {place} (baseline: alone here), p{percent}",
            percentile(without, percent),
            baseline,
            unit="ms",
            goal=None,
        )


def _people(door: Door, phase: Phase) -> Seen:
    return asyncio.run(_asking(door, phase))


async def _asking(door: Door, phase: Phase) -> Seen:
    return await ask(door, at_once=phase.people, tokens=phase.tokens, seconds=phase.seconds,
                     pause=phase.pause)  # fmt: skip


def _at_vllm_serve(fleet: BenchFleet, phase: Phase, turns: int, servers: int) -> Seen:
    seen, model = Seen(), fleet.models[CHAT]
    with ExitStack() as stack:
        bare = [
            Door(
                stack.enter_context(vllm_serve(fleet.catalog, model, fleet.bare_environment)),
                model,
            )
            for _ in range(servers)
        ]
        for door in bare:
            asyncio.run(ask(door, at_once=2, tokens=4, calls=8))
        for _ in range(turns):
            seen.add(asyncio.run(_among_rows(bare, phase)))
    return seen


async def _among_rows(doors: Sequence[Door], phase: Phase) -> Seen:
    """People at servers at which a client keeps many rows; each server has as many of both."""
    rows = [
        asyncio.create_task(
            ask(door, at_once=_ROWS_AT_ONCE, tokens=_ROW_TOKENS, seconds=phase.seconds + 10)
        )
        for door in doors
    ]
    await asyncio.sleep(10)
    here = phase._replace(people=max(1, phase.people // len(doors)))
    seen = Seen()
    for one in await asyncio.gather(*(_asking(door, here) for door in doors)):
        seen.add(one)
    await asyncio.gather(*rows)
    return seen
