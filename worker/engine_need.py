"""What an engine takes of its pool, and whether the pool's machines can hold it. Pure."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from shared.catalog import Catalog, Model, Pool
from worker.engine_placement import bundles_of, machines_for, processors_of


@dataclass(frozen=True)
class EngineNeed:
    """One engine of a model on one of its pools."""

    model: Model
    pool_name: str
    pool: Pool

    @property
    def bundles(self) -> list[dict[str, float]]:
        """What Ray keeps for it together, one bundle for each worker."""
        return bundles_of(self.model, self.pool, processors_of(self.model, self.pool))

    @property
    def gpus(self) -> float:
        return sum(bundle.get("GPU", 0) for bundle in self.bundles)

    def __str__(self) -> str:
        texts = Counter(map(_text, self.bundles))
        bundles = " + ".join(f"{count} x {{{text}}}" for text, count in texts.items())
        room = (
            _machines(machines_for(self.bundles, self.pool))
            if self.pool.machine
            else ("the pool does not say what a `machine` has")
        )
        return (
            f"{self.model.name} on {self.pool_name}: an engine has {self.gpus:g} GPUs, in the "
            f"bundles {bundles}; at most {self.model.max_replicas} of them; {room}"
        )

    @property
    def problem(self) -> str | None:
        """Why the pool's machines cannot hold a single engine; None if they can."""
        needed, most = machines_for(self.bundles, self.pool), self.pool.max_machines
        if needed is None:
            has = _text(self.pool.machine)
            needs = _text(max(self.bundles, key=lambda bundle: sum(bundle.values())))
            return f"a worker of its engine needs {{{needs}}}, and a machine has {{{has}}}"
        if most is not None and needed > most:
            return (
                f"its engine has {self.gpus:g} GPUs and needs {_machines(needed)}, and the pool "
                f"has {most}"
            )
        return None


def needs(catalog: Catalog) -> Iterator[EngineNeed]:
    """What an engine of each model takes of each of its pools."""
    for model in catalog.models.values():
        for name in model.pools:
            yield EngineNeed(model, name, catalog.pools[name])


def _machines(count: int | None) -> str:
    return "none of its machines" if count is None else f"{count} machine{'s' * (count > 1)}"


def _text(bundle: Mapping[str, float]) -> str:
    # What says the kind of a machine is no amount.
    return ", ".join(
        name if name.startswith("accelerator_type:") else f"{name}: {amount:g}"
        for name, amount in bundle.items()
        if amount
    )
