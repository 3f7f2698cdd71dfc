"""Whether this process should be restarted, and whether calls should be sent to it. Asks no key."""

import asyncio
from collections.abc import Awaitable
from typing import Any

import structlog
from fastapi import APIRouter, Response

from gateway.dependencies import Use

router = APIRouter()
log = structlog.get_logger()

_PATIENCE = 3.0
_UNWELL: dict[int | str, dict[str, Any]] = {503: {"model": dict[str, str]}}


@router.get("/healthz", responses=_UNWELL)
async def live(response: Response, services: Use) -> dict[str, str]:
    """503 once the relay has died, which only a restart mends."""
    if services.relaying.done():
        response.status_code = 503
        return {"status": "the relay has stopped"}
    return {"status": "ok"}


@router.get("/readyz", responses=_UNWELL)
async def ready(response: Response, services: Use) -> dict[str, str]:
    """503 with the names of the services that do not answer."""
    names = ("redis", "s3", "rabbitmq")
    found = await asyncio.gather(
        *map(_asked, (services.state.ping(), services.storage.ping(), services.bus.ping())),
        return_exceptions=True,
    )
    report = {"status": "ok"}
    for name, error in zip(names, found, strict=True):
        report[name] = "ok" if error is None else "does not answer"
        if error is not None:
            report["status"] = "not ready"
            # Errors may hold addresses, which are for the log only.
            log.warning("ready.refused", service=name, reason=repr(error))
    if report["status"] != "ok":
        response.status_code = 503
    return report


async def _asked(ping: Awaitable[None]) -> None:
    async with asyncio.timeout(_PATIENCE):
        await ping
