"""Whether anybody is here, for those who wait until nobody is."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class Presence:
    """Belongs to one event loop."""

    def __init__(self) -> None:
        self._count = 0
        self._is_nobody, self._is_somebody = asyncio.Event(), asyncio.Event()
        self._is_nobody.set()

    @contextmanager
    def here(self) -> Iterator[None]:
        """Be here for the block."""
        self._count += 1
        self._is_nobody.clear()
        self._is_somebody.set()
        try:
            yield
        finally:
            self._count -= 1
            if not self._count:
                self._is_somebody.clear()
                self._is_nobody.set()

    async def somebody(self) -> None:
        """Wait until somebody is here."""
        await self._is_somebody.wait()

    async def nobody(self) -> None:
        """Wait until nobody is here."""
        await self._is_nobody.wait()
