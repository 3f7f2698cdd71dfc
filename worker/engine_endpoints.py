"""Whether an engine answers what its catalog promises. Pure."""

import json
from collections.abc import Collection, Mapping

from shared.catalog import Model
from shared.errors import SetupError

#: The environment variable that holds the model's endpoints for a replica.
ENDPOINTS_VARIABLE = "BATCHYARD_ENDPOINTS"


def endpoints_environment(model: Model) -> dict[str, str]:
    """What the environment of the model's replicas says about its endpoints."""
    return {ENDPOINTS_VARIABLE: json.dumps(model.endpoints)}


def require_endpoints(environment: Mapping[str, str], answered: Collection[str]) -> None:
    """Raise SetupError if the engine does not answer an endpoint that the environment names."""
    promised = json.loads(environment.get(ENDPOINTS_VARIABLE, "[]"))
    if missing := [path for path in promised if path not in answered]:
        raise SetupError(not_answered(missing, answered))


def not_answered(missing: Collection[str], answered: Collection[str]) -> str:
    """What is wrong with a model that the catalog takes for another kind, and what to do."""
    return (
        f"this model does not answer {', '.join(missing)}; it answers "
        f"{', '.join(sorted(answered)) or 'nothing that a batch may ask'}. Write them as "
        "`endpoints`, or what the model does as `tasks`"
    )
