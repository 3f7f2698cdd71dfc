"""What the way through the gateway costs a live call: `python -m benchmarks live`.

Both sides are measured in turns, in one run.
"""

import asyncio

from benchmarks.bench_fleet import BenchFleet
from benchmarks.figures import Figure, bounded, compared
from benchmarks.live_load import Door, Seen, ask, door_of, percentile
from benchmarks.vllm_serve import vllm_serve

#: How many calls, by how many there are at once.
_CALLS = {1: 60, 32: 320}
_TOKENS = 32


def live_calls(fleet: BenchFleet, *, turns: int) -> list[Figure]:
    """Time to the first token and calls a second: the gateway beside a bare `vllm serve`."""
    ours = door_of(fleet)
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
