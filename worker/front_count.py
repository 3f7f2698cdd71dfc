"""How many processes tokenize an engine's rows and write its answers where nobody says it."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shared.catalog import Model, Pool
from worker.engine_variables import FRONTS_VARIABLE, SHARE_VARIABLE

#: The replica decides it, by the files of the model.
BY_ITSELF = 0
#: Where rows cost the card little, the replica's own process is what bounds them (ADR 32). More
#: fronts than these brought nothing there.
_POOLING, _SMALL = 3, 4
#: Weights below which a model that generates is a small one.
_SMALL_WEIGHTS = 2_000_000_000
#: A front is of use where it has a processor, and as many are left to the engine and to others.
_PROCESSORS_OF_A_FRONT = 2


def asked_fronts(model: Model, pool: Pool) -> int:
    """What the catalog says or follows from it; `BY_ITSELF` leaves it to the replica."""
    if model.fronts is not None:
        return model.fronts
    has_gpu = pool.accelerator_type is not None or "GPU" in pool.resources
    # On processors, the fronts would take those of the model.
    return BY_ITSELF if has_gpu and model.tenant_lora is None else 1


def fronts_of(model: Model, config: Mapping[str, Any] | None, processors: int) -> int:
    """For a model with this `config.json`, on a card, with so many processors for its engine.

    A model without a configuration at hand is taken for a large one.
    """
    if config is None or _sees_or_hears(config):
        # Media that several fronts send are not cached.
        return 1
    if model.runner == "pooling":
        wanted = _POOLING
    else:
        wanted = _SMALL if 0 < _weights(config) < _SMALL_WEIGHTS else 1
    return max(1, min(wanted, processors // _PROCESSORS_OF_A_FRONT))


def fronts_here(model: Model) -> int:
    """How many this replica of the model has, as its environment and this machine have it."""
    # An older version has deployed engines without it.
    asked = int(os.environ.get(FRONTS_VARIABLE, "1"))
    if asked != BY_ITSELF:
        return asked
    # Engines that share a card share the processors, too.
    share = float(os.environ.get(SHARE_VARIABLE, "1"))
    processors = int(len(os.sched_getaffinity(0)) * share)
    return fronts_of(model, config_of(model.source), processors)


def config_of(source: str) -> Mapping[str, Any] | None:
    """The `config.json` of a model's folder, or of what was downloaded before; None without."""
    path = Path(source) / "config.json"
    if not path.is_file():
        from huggingface_hub import try_to_load_from_cache
        from huggingface_hub.errors import HFValidationError

        try:
            found = try_to_load_from_cache(source, "config.json")
        except HFValidationError:
            return None
        if not isinstance(found, str):
            return None
        path = Path(found)
    config = json.loads(path.read_bytes())
    return config if isinstance(config, dict) else None


def _sees_or_hears(config: Mapping[str, Any]) -> bool:
    return any(name in config for name in ("vision_config", "audio_config"))


def _weights(config: Mapping[str, Any]) -> int:
    """About how many weights there are; 0 if the configuration does not tell."""
    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "vocab_size")
    sizes = [config.get(name) for name in names]
    if not all(isinstance(size, int) for size in sizes):
        return 0
    width, inner, layers, words = (int(size) for size in sizes if size is not None)
    experts = next(
        (
            count
            for name in ("num_experts", "num_local_experts", "n_routed_experts")
            if isinstance(count := config.get(name), int)
        ),
        1,
    )
    return layers * (4 * width * width + 3 * width * inner * experts) + words * width
