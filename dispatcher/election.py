"""Election: of all dispatchers, the one that holds the lease leads."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import structlog

from shared.errors import TransientError
from shared.state.leases import Lease
from shared.tasks import end

log = structlog.get_logger()


class Election:
    """Holds the lease whenever it can, and leads meanwhile.

    The duties are compare-and-set in Redis and create-only in S3. So a leader that was frozen for
    longer than its lease does no harm in the moment before it notices.
    """

    def __init__(self, lease: Lease, lead: Callable[[], Awaitable[None]]) -> None:
        self._lease = lease
        self._lead = lead
        self._leading: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Take part until cancelled."""
        try:
            while True:
                await self._follow(is_elected=await self._is_elected())
                await asyncio.sleep(self._lease.seconds / 4)
        finally:
            if self._leading is not None:
                await end(self._leading)
            # Without this, the lease ends by itself.
            with suppress(TransientError):
                await asyncio.shield(self._lease.release())

    async def _is_elected(self) -> bool:
        try:
            return await asyncio.wait_for(self._lease.hold(), self._lease.seconds / 2) > 0
        except Exception as error:  # noqa: BLE001  # without Redis nobody leads
            log.warning("dispatcher.lease_unknown", reason=str(error) or type(error).__name__)
            return False

    async def _follow(self, *, is_elected: bool) -> None:
        """Begin or end the duties as the election says."""
        if self._leading is not None and self._leading.done():
            log.warning("dispatcher.duties_ended", reason=str(self._leading.exception()))
            self._leading = None
        if is_elected and self._leading is None:
            log.info("dispatcher.leads")
            self._leading = asyncio.ensure_future(self._lead())
        elif not is_elected and self._leading is not None:
            log.warning("dispatcher.follows")
            await end(self._leading)
            self._leading = None
