"""Whether this process should be restarted, and whether it should get calls. Needs no key."""

from typing import Any

from fastapi import APIRouter, Response

from gateway.dependencies import Use
from shared.monitoring.readiness import readiness

router = APIRouter()

_UNWELL: dict[int | str, dict[str, Any]] = {503: {"model": dict[str, str]}}


@router.get("/healthz", responses=_UNWELL)
async def live(response: Response, services: Use) -> dict[str, str]:
    """503 once the relay has stopped; only a restart helps."""
    if services.relaying.done():
        response.status_code = 503
        return {"status": "the relay has stopped"}
    return {"status": "ok"}


@router.get("/readyz", responses=_UNWELL)
async def ready(response: Response, services: Use) -> dict[str, str]:
    """503 with the names of the services that do not answer."""
    report = await readiness(
        {
            "redis": services.state.ready(),
            "s3": services.storage.ping(),
            "rabbitmq": services.bus.ping(),
        }
    )
    if report["status"] != "ok":
        response.status_code = 503
    return report
