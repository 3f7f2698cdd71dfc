"""Makes sure that a lane's engine is deployed on Ray Serve as the catalog says.

Imports ray and nothing heavier.
"""

import threading

from ray import serve
from ray.exceptions import RayError
from ray.serve.config import ProxyLocation
from ray.serve.exceptions import RayServeException

from shared.catalog import Catalog, Lane
from shared.engines import innermost_reason
from shared.errors import TransientError
from worker.engine_definition import deploy
from worker.engine_errors import EngineFailedError
from worker.engine_status import engine_failure, is_deployed, stale_apps
from worker.races import retry_lost

#: While Serve pickles a deployment it registers modules for the whole process, and refuses another
#: thread that does the same.
_deploying = threading.Lock()


def ensure_engine(catalog: Catalog, lane: Lane) -> str:
    """Deploy the lane's engine unless it is deployed; returns the application's name. Blocks.

    Does not wait for a replica. Removes engines of this lane with another fingerprint. Raises
    EngineFailedError when Serve refuses the deployment.
    """
    name = catalog.app_name(lane)
    if not is_deployed(name) or engine_failure(name) is not None:
        start_serve()
        try:
            with _deploying:
                deploy(catalog, lane)
        except (RayServeException, ValueError) as error:
            raise EngineFailedError(innermost_reason(str(error))) from error
    for other in stale_apps(lane, name):
        serve.delete(other, _blocking=False)
    return name


def restore_engine(catalog: Catalog, lane: Lane) -> bool:
    """Deploy the lane's engine again if it has been removed; returns whether it was. Blocks.

    One that has failed stays so: whoever calls it learns the reason. Raises EngineFailedError when
    Serve refuses the deployment, TransientError when Ray does not answer.
    """
    try:
        if is_deployed(catalog.app_name(lane)):
            return False
        ensure_engine(catalog, lane)
    except (RayServeException, RayError, TimeoutError) as error:
        raise TransientError(f"Ray does not answer about its engines: {error!r}") from error
    return True


def start_serve() -> None:
    """Start Serve's controller, without an HTTP proxy, unless the cluster has one."""
    # The first two engines of a cluster both try to start it, and Ray refuses the second.
    retry_lost(lambda: serve.start(proxy_location=ProxyLocation.Disabled))
