"""Engines that share a GPU: which part of it each has, and what cannot have a part. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any

from shared.catalog import Pool

#: The part of a GPU's memory that vLLM takes where nobody says anything else.
_MEMORY = 0.92
#: What spreads an engine over several workers, each of which needs a GPU of its own.
_SPREADS = tuple(f"{kind}_parallel_size" for kind in ("tensor", "pipeline", "data"))


def card_share(pool: Pool) -> float:
    """The part of a GPU that a worker of an engine asks for; 1 if it has whole ones."""
    return min(1.0, pool.resources.get("GPU", 1.0))


def memory_share(pool: Pool) -> float:
    """The part of its GPU's memory that an engine takes, so that all of them fit."""
    # Rounded down: together they take no more than one alone.
    return int(10_000 * _MEMORY * card_share(pool)) / 10_000


def share_problems(pool: Pool, engine: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Arguments of an engine that do not fit on a part of a GPU, and why."""
    share = card_share(pool)
    if share == 1:
        return
    for argument in _SPREADS:
        if engine.get(argument, 1) != 1:
            yield (
                argument,
                f"the pool gives each worker {share:g} of a GPU, and workers of one engine cannot "
                "share one; use a pool with whole GPUs",
            )
    taken = engine.get("gpu_memory_utilization")
    if isinstance(taken, int | float) and taken > share:
        yield (
            "gpu_memory_utilization",
            f"it is more than the pool's {share:g} of a GPU, so other engines on it would find no "
            f"memory; leave it out, and it is {memory_share(pool):g}",
        )
