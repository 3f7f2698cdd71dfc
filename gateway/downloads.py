"""Answers that are downloads: each counts against its tenant's limit until its last byte."""

from collections.abc import AsyncGenerator
from contextlib import ExitStack, aclosing

import structlog

from gateway.dependencies import Services
from gateway.limits import limits_of
from shared.errors import BrokenObjectError

log = structlog.get_logger()


async def opened(
    services: Services, tenant: str, chunks: AsyncGenerator[bytes, None]
) -> AsyncGenerator[bytes, None]:
    """The chunks, of which the first has been read, so that errors come before the answer begins.

    Raises LimitError if the tenant has as many downloads as it may, and whatever the first chunk
    raises.
    """
    limit = (await limits_of(services, tenant)).downloads or 0
    place = await services.downloads.take(tenant, limit=limit)
    with ExitStack() as failing:
        failing.callback(services.downloads.free, place)
        first = await anext(chunks, b"")
        failing.pop_all()
    return services.downloads.counted(place, _chained(first, chunks))


async def _chained(first: bytes, rest: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(rest):
        yield first
        try:
            async for chunk in rest:
                yield chunk
        except BrokenObjectError as error:
            # The length has been told, so a client notices that the end is missing.
            log.error("file.damaged", key=error.key, reason=error.reason)  # noqa: TRY400  # the reason says it all
            raise
