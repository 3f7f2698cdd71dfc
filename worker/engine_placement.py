"""Which resources Ray keeps for a replica of an engine and its workers.

Ray's own LLM library says the same (a test holds one against the other), but to ask it is to import
vLLM, ten seconds of each cold start.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from shared.catalog import Model, Pool


def placement_of(pool: Pool) -> dict[str, Any] | None:
    """Ray's `placement_group_config`; None for one GPU to each worker."""
    if not pool.resources:
        return None
    if pool.accelerator_type or "GPU" in pool.resources:
        return {"bundle_per_worker": {"GPU": 1.0, **pool.resources}}
    return {"bundles": [dict(pool.resources)]}


def bundles_of(model: Model, pool: Pool, processors: int) -> list[dict[str, float]]:
    """The bundles of a replica's placement group, one a worker; the replica is in the first.

    `processors` are those that the replica needs besides.
    """
    workers = 1
    for way in ("tensor", "pipeline"):
        workers *= int(model.engine.get(f"{way}_parallel_size", 1))
    placement = placement_of(pool) or {"bundle_per_worker": {"GPU": 1.0}}
    worker = placement.get("bundle_per_worker")
    bundles = [dict(worker) for _ in range(workers)] if worker else [*placement["bundles"]]
    if pool.accelerator_type:
        for bundle in bundles:
            # Enough to be on such a machine.
            bundle.setdefault(f"accelerator_type:{pool.accelerator_type}", 0.001)
    bundles[0] = {"GPU": 0, **bundles[0], "CPU": bundles[0].get("CPU", 0) + processors}
    return bundles


def processors_of(model: Model, pool: Pool) -> int:
    """The processors that a replica needs besides its workers, for itself and its fronts."""
    if "CPU" in pool.resources:
        return 0
    # Fronts that nobody asked for take what is left of the machine's.
    return 1 if model.fronts in (None, 1) else 1 + model.fronts


def machines_for(bundles: Sequence[Mapping[str, float]], pool: Pool) -> int | None:
    """How many machines of the pool these bundles take; None if one of them fits on none.

    Each bundle is on one machine. The pool says what a machine has, or this is 1.
    """
    if not pool.machine:
        return 1
    whole = dict(pool.machine)
    if pool.accelerator_type:
        whole.setdefault(f"accelerator_type:{pool.accelerator_type}", 1)
    machines: list[dict[str, float]] = []
    for bundle in bundles:
        place = next((one for one in machines if _fits(bundle, one)), None)
        if place is None:
            if not _fits(bundle, whole):
                return None
            machines.append(place := dict(whole))
        for name, amount in bundle.items():
            place[name] = place.get(name, 0) - amount
    return len(machines)


#: Ray counts resources in ten thousandths.
_SMALLEST = 1e-4


def _fits(bundle: Mapping[str, float], machine: Mapping[str, float]) -> bool:
    return all(amount <= machine.get(name, 0) + _SMALLEST / 2 for name, amount in bundle.items())
