"""What Ray Serve knows of an engine: whether it is deployed, its replicas, why it cannot start.

Every engine is one deployment in its own Serve application. Imports ray and nothing heavier.
"""

from typing import NamedTuple

from ray import serve
from ray.serve.schema import ApplicationStatus

from shared.catalog import Lane
from shared.engines import innermost_reason

#: The name of the one deployment in each application.
DEPLOYMENT = "engine"


def is_deployed(app_name: str) -> bool:
    """Whether Serve has an application of exactly this name and is not deleting it."""
    app = serve.status().applications.get(app_name)
    return app is not None and app.status is not ApplicationStatus.DELETING


def stale_apps(lane: Lane, current: str) -> list[str]:
    """Applications of this lane with another fingerprint that are still there."""
    return [
        name
        for name, app in serve.status().applications.items()
        if name.startswith(f"{lane.name}.")
        and name != current
        and app.status is not ApplicationStatus.DELETING
    ]


def engine_failure(app_name: str) -> str | None:
    """Why the engine cannot start, in its own words; None while it works, starts or sleeps.

    Serve gives up after three failed starts in a row, which takes at most a few minutes. A failed
    engine stays failed until it is deployed again.
    """
    app = serve.status().applications.get(app_name)
    if app is None:
        return None
    engine = app.deployments.get(DEPLOYMENT)
    if engine is not None and engine.status_trigger == "REPLICA_STARTUP_FAILED":
        return innermost_reason(engine.message)
    if app.status is ApplicationStatus.DEPLOY_FAILED:
        return innermost_reason(app.message)
    return None


class EngineState(NamedTuple):
    """How many replicas an engine has, by state."""

    running: int
    starting: int


def engine_state(app_name: str) -> EngineState | None:
    """None when there is no such application."""
    app = serve.status().applications.get(app_name)
    engine = app.deployments.get(DEPLOYMENT) if app else None
    if engine is None:
        return None
    count = {str(state): number for state, number in engine.replica_states.items()}
    waiting = ("PENDING_ALLOCATION", "STARTING", "RECOVERING", "UPDATING")
    return EngineState(
        running=count.get("RUNNING", 0),
        starting=sum(count.get(state, 0) for state in waiting),
    )
