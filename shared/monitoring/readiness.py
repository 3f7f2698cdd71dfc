"""Whether the services that a process needs answer now, for `/readyz`."""

import asyncio
from collections.abc import Awaitable, Mapping

import structlog

from shared.bus.broker_errors import BlockedError

log = structlog.get_logger()

#: A service that has not answered by then counts as gone.
PATIENCE_SECONDS = 3.0


async def readiness(
    pings: Mapping[str, Awaitable[None]], *, patience_seconds: float = PATIENCE_SECONDS
) -> dict[str, str]:
    """A report: `status` is "ok" or "not ready", and each service "ok" or what is wrong with it.

    The report holds no error texts, which may contain addresses; those go to the log.
    """

    async def asked(ping: Awaitable[None]) -> None:
        async with asyncio.timeout(patience_seconds):
            await ping

    found = await asyncio.gather(*map(asked, pings.values()), return_exceptions=True)
    report = {"status": "ok"}
    for name, error in zip(pings, found, strict=True):
        match error:
            case None:
                report[name] = "ok"
                continue
            case BlockedError():
                report[name] = "takes no messages: its alarm is on"
            case _:
                report[name] = "does not answer"
        report["status"] = "not ready"
        log.warning("ready.refused", service=name, reason=repr(error))
    return report
