"""What a small batch waits for goes before what can wait: both are in one process."""

import asyncio
from contextlib import suppress

from shared.presence import Presence


class Hurry(Presence):
    """Those who are in a hurry."""

    async def give_way(self, seconds: float) -> None:
        """Wait until nobody is in a hurry, but no longer than this."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.nobody()
