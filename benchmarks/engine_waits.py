"""What small batches, live calls and giants cost each other: `python -m benchmarks.engine_waits`.

    python -m benchmarks.engine_waits [CASE …] [--tries N] [--prompt LEAST MOST] [--tokens N]
    python -m benchmarks.engine_waits --live [--prompt LEAST MOST] [--tokens N]
    python -m benchmarks.engine_waits --small [--prompt LEAST MOST] [--tokens N]

The queue and the seats in front of the engine are the product's own. The engine is the scripted one
with the steps of a 7B model on an H100, in virtual time, so the figures are those of any machine.
"""

import argparse
import asyncio
import itertools
import math
import random
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from benchmarks import virtual_time
from benchmarks.scripted_engine import Pace, ScriptedEngine
from benchmarks.simulated_fleet import DAY
from shared.ordering.work import Work
from worker.live_control import Goals

#: 7B on an H100, from its rates in docs/performance.md: 5.9 ms from one token to the next alone,
#: and 85 rows/s of 300 tokens in and 128 out.
PACE = Pace(kv_tokens=400_000, step_seconds=0.0058, row_seconds=0.000_01, prefill_seconds=0.22)
#: 0.5B on an H100: a step with prompts is no CUDA graph.
SMALL_PACE = Pace(
    kv_tokens=400_000, step_seconds=0.0035, row_seconds=0.0, prefill_seconds=0.02,
    mixed_seconds=0.0085,
)  # fmt: skip
#: Answers are shorter and longer than the mean by this part of it.
_SPREAD = 0.7
#: The way of a batch outside the engine: what a row takes over its generation there.
_WAY_SECONDS = 0.15
_SMALL_ROWS, _SMALL_TOKENS, _SMALL_PROMPT = 5, 16, (30, 90)
_GIANT_ROWS = 50_000
#: Rows of giants in the engine's queue and inside: two waves', and until the next one is there.
_AHEAD, _TRAVEL_SECONDS = 1024, 0.03
_WARM_SECONDS, _PAUSE_SECONDS = 6.0, 1.5
#: People who ask, with a pause after each answer, and the catalog's usual goals, in seconds.
_PEOPLE, _PEOPLES_PAUSE, _LIVE_TOKENS = 2, 0.5, 48
_GOALS = Goals(ttft=1.0, tpot=0.1)
#: Who has the giants.
CASES = {
    "another tenant's giant": ["other"],
    "the same tenant's giant": ["small"],
    "giants of ten tenants": [f"other-{number}" for number in range(10)],
}


class Filled(NamedTuple):
    """What one giant with answers of many lengths makes of an engine."""

    #: Of its steps, those with prompts, and of its seats, those with a sequence.
    mixed_part: float
    filled_part: float
    #: Rows a second.
    rate: float


class Scale(NamedTuple):
    """How often, and the rows of the giants."""

    tries: int = 30
    prompt: tuple[int, int] = (30, 90)
    tokens: int = 128
    #: For which people ask.
    live_seconds: float = 30.0


class Found(NamedTuple):
    """What small batches took, in seconds, and the engine's tokens a second meanwhile."""

    taken: list[float]
    rate: float


async def _giants(
    engine: ScriptedEngine, owners: Sequence[str], scale: Scale, *, spread: float = 0.0
) -> None:
    """Give the engine rows of giants until cancelled.

    Answers are shorter and longer than `scale.tokens` by the part `spread` of it.
    """
    dice, places = random.Random(16), asyncio.Semaphore(_AHEAD)

    async def run(number: int, owner: str) -> None:
        try:
            prompt = dice.randint(*scale.prompt)
            tokens = scale.tokens
            if spread:
                tokens = round(tokens * dice.uniform(1 - spread, 1 + spread))
            await engine.run(_work(f"giant-{owner}", number, owner, _GIANT_ROWS, prompt, tokens),
                             prompt, tokens)  # fmt: skip
            await asyncio.sleep(_TRAVEL_SECONDS)
        finally:
            places.release()

    async with asyncio.TaskGroup() as rows:
        for number, owner in enumerate(itertools.cycle(owners)):
            await places.acquire()
            rows.create_task(run(number, owner))


async def _small(engine: ScriptedEngine, number: int, dice: random.Random) -> float:
    began = virtual_time.now()
    prompts = [dice.randint(*_SMALL_PROMPT) for _ in range(_SMALL_ROWS)]
    works = [
        _work(f"small-{number}", row, "small", _SMALL_ROWS, prompt, _SMALL_TOKENS)
        for row, prompt in enumerate(prompts)
    ]
    await asyncio.gather(
        *(
            engine.run(work, prompt, _SMALL_TOKENS)
            for work, prompt in zip(works, prompts, strict=True)
        )
    )
    return virtual_time.now() - began


def _work(batch: str, number: int, tenant: str, rows: int, prompt: int, tokens: int) -> Work:
    now = virtual_time.now()
    return Work(batch, number, tenant, 5, now, now + DAY, prompt + tokens, batch_rows=rows)


async def _lane(owners: Sequence[str], scale: Scale, *, tries: int) -> Found:
    """A lane with these giants and so many small batches; without any, the giants alone."""
    engine, dice = ScriptedEngine(PACE, virtual_time.now), random.Random(17)
    running = [asyncio.ensure_future(engine.go_on())]
    if owners:
        running.append(asyncio.ensure_future(_giants(engine, owners, scale)))
    await asyncio.sleep(_WARM_SECONDS)
    began, before, taken = virtual_time.now(), engine.tokens, []
    for number in range(tries):
        taken.append(await _small(engine, number, dice))
        await asyncio.sleep(_PAUSE_SECONDS * (0.5 + dice.random()))
    if not tries:
        await asyncio.sleep(2 * _PAUSE_SECONDS * scale.tries)
    tokens = engine.tokens - before - tries * _SMALL_ROWS * (sum(_SMALL_PROMPT) / 2 + _SMALL_TOKENS)
    rate = tokens / (virtual_time.now() - began)
    for task in running:
        task.cancel()
    await asyncio.wait(running)
    return Found(taken, rate)


class Costs(NamedTuple):
    """What small batches and giants cost each other, as multiples of what each has alone."""

    p50: float
    p95: float
    #: In the engine alone, without the way to it.
    engine_p95: float
    giants_rate: float


def costs(owners: Sequence[str], scale: Scale) -> Costs:
    """Measure one case."""
    alone = virtual_time.run(_lane([], scale, tries=scale.tries))
    undisturbed = virtual_time.run(_lane(owners, scale, tries=0))
    beside = virtual_time.run(_lane(owners, scale, tries=scale.tries))

    def ratio(part: float, way: float) -> float:
        return (way + _part(beside.taken, part)) / (way + _part(alone.taken, part))

    return Costs(
        ratio(0.5, _WAY_SECONDS),
        ratio(0.95, _WAY_SECONDS),
        ratio(0.95, 0.0),
        beside.rate / undisturbed.rate,
    )


class LiveCosts(NamedTuple):
    """What live calls and a giant cost each other, as multiples of what each has alone."""

    first_p50: float
    first_p99: float
    next_p50: float
    next_p99: float
    giants_rate: float


class _Heard(NamedTuple):
    """Seconds until first tokens, and from each token to the next; tokens a second of the rest."""

    first: list[float]
    gaps: list[float]
    rate: float


async def _live_lane(owners: Sequence[str], scale: Scale, *, people: int) -> _Heard:
    engine, dice = ScriptedEngine(PACE, virtual_time.now, _GOALS), random.Random(18)
    running = [asyncio.ensure_future(engine.go_on())]
    if owners:
        running.append(asyncio.ensure_future(_giants(engine, owners, scale)))
    await asyncio.sleep(_WARM_SECONDS)
    began, before = virtual_time.now(), engine.tokens
    first: list[float] = []
    gaps: list[float] = []

    async def ask() -> None:
        nonlocal before
        await asyncio.sleep(dice.random())
        while virtual_time.now() - began < scale.live_seconds:
            asked_at, prompt = virtual_time.now(), dice.randint(*_SMALL_PROMPT)
            heard_at = await engine.run_live("people", prompt, _LIVE_TOKENS)
            before += prompt + _LIVE_TOKENS
            first.append(heard_at[0] - asked_at)
            gaps.extend(after - at for at, after in itertools.pairwise(heard_at))
            await asyncio.sleep(_PEOPLES_PAUSE)

    await asyncio.gather(*(ask() for _ in range(people)))
    if not people:
        await asyncio.sleep(scale.live_seconds)
    rate = (engine.tokens - before) / (virtual_time.now() - began)
    for task in running:
        task.cancel()
    await asyncio.wait(running)
    return _Heard(first, gaps, rate)


def live_costs(scale: Scale) -> LiveCosts:
    """Live calls beside a giant."""
    owners = CASES["another tenant's giant"]
    alone = virtual_time.run(_live_lane([], scale, people=_PEOPLE))
    undisturbed = virtual_time.run(_live_lane(owners, scale, people=0))
    beside = virtual_time.run(_live_lane(owners, scale, people=_PEOPLE))

    def ratio(found: Sequence[float], baseline: Sequence[float], part: float) -> float:
        return _part(found, part) / _part(baseline, part)

    return LiveCosts(
        ratio(beside.first, alone.first, 0.5),
        ratio(beside.first, alone.first, 0.99),
        ratio(beside.gaps, alone.gaps, 0.5),
        ratio(beside.gaps, alone.gaps, 0.99),
        beside.rate / undisturbed.rate,
    )


async def _giant_alone(scale: Scale, pace: Pace, seconds: float) -> Filled:
    engine = ScriptedEngine(pace, virtual_time.now)
    running = [
        asyncio.ensure_future(engine.go_on()),
        asyncio.ensure_future(_giants(engine, ["other"], scale, spread=_SPREAD)),
    ]
    await asyncio.sleep(seconds)
    rows = engine.tokens / (statistics.mean(scale.prompt) + scale.tokens)
    for task in running:
        task.cancel()
    await asyncio.wait(running)
    return Filled(engine.mixed_part, engine.filled_part, rows / seconds)


def filled(scale: Scale, pace: Pace = SMALL_PACE, *, seconds: float = 30.0) -> Filled:
    """Let a giant alone fill an engine for so long."""
    return virtual_time.run(_giant_alone(scale, pace, seconds))


def _part(times: Sequence[float], part: float) -> float:
    if part == 0.5:  # noqa: PLR2004  # the median
        return statistics.median(times)
    return sorted(times)[math.ceil(part * len(times)) - 1]


def main() -> None:
    """Print a line for each case."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine_waits", description=__doc__)
    parser.add_argument("cases", nargs="*", choices=[*CASES, []])
    parser.add_argument("--tries", type=int, default=Scale().tries)
    parser.add_argument("--prompt", type=int, nargs=2, default=Scale().prompt)
    parser.add_argument("--tokens", type=int, default=Scale().tokens)
    parser.add_argument("--live", action="store_true", help="live calls in place of small batches")
    parser.add_argument("--small", action="store_true", help="a giant alone on a small model")
    options = parser.parse_args()
    scale = Scale(options.tries, tuple(options.prompt), options.tokens)
    if options.small:
        for name, value in filled(scale)._asdict().items():
            print(f"{name:12} {value:7.2f}")
        return
    if options.live:
        for name, ratio in live_costs(scale)._asdict().items():
            print(f"{name:12} {ratio:7.2f}")
        return
    print("5 rows beside                    p50     p95     p95 in the engine   the giants' rate")
    for name in options.cases or CASES:
        found = costs(CASES[name], scale)
        print(
            f"{name:28} {found.p50:7.2f} {found.p95:7.2f} {found.engine_p95:12.2f}"
            f" {found.giants_rate:18.3f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
