"""Makes sure that a lane's engine is deployed on Ray Serve as the catalog says.

Imports ray and nothing heavier. The definition of the deployment needs vLLM, which takes ten
seconds to import, so a Ray task makes it.
"""

from types import ModuleType

import ray
from ray import serve
from ray.exceptions import RayTaskError
from ray.serve.config import ProxyLocation

from shared.catalog import Catalog, Lane
from shared.engines import innermost_reason
from worker.collector import collector_paused
from worker.engine_errors import EngineFailedError
from worker.engine_status import engine_failure, is_deployed, stale_apps
from worker.races import retry_lost


def ensure_engine(catalog: Catalog, lane: Lane) -> str:
    """Deploy the lane's engine unless it is deployed; returns the application's name. Blocks.

    Does not wait for a replica. Removes engines of this lane with another fingerprint. Raises
    EngineFailedError when Ray rejects the catalog's entry.
    """
    name = catalog.app_name(lane)
    if is_deployed(name) and engine_failure(name) is None and not stale_apps(lane, name):
        return name
    deployed = _deploy.remote(catalog.model_dump_json(), lane)
    # While the task imports vLLM.
    start_serve()
    try:
        ray.get(deployed)
    except RayTaskError as error:
        raise EngineFailedError(innermost_reason(str(error))) from None
    return name


def start_serve() -> None:
    """Start Serve's controller, without an HTTP proxy, unless the cluster has one."""
    # The first two engines of a cluster both try to start it, and Ray refuses the second.
    retry_lost(lambda: serve.start(proxy_location=ProxyLocation.Disabled))


@ray.remote(num_cpus=0, max_retries=3)
def _deploy(catalog_json: str, lane: Lane) -> None:
    # While it is imported, Ray's LLM library registers its connectors in the cluster's store. It
    # checks and then writes, so that of two processes one is refused.
    definition = retry_lost(_import_definition)
    catalog = Catalog.model_validate_json(catalog_json)
    name = catalog.app_name(lane)
    if not is_deployed(name) or engine_failure(name) is not None:
        start_serve()
        definition.deploy(catalog, lane)
    for other in stale_apps(lane, name):
        serve.delete(other, _blocking=False)


def _import_definition() -> ModuleType:
    with collector_paused():
        from worker import engine_definition

    return engine_definition
