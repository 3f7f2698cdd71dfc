"""What a small batch waits for goes before what can wait: both are in one process."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class Hurry:
    """Belongs to one event loop."""

    def __init__(self) -> None:
        self._count = 0
        self._is_over = asyncio.Event()
        self._is_over.set()

    @contextmanager
    def felt(self) -> Iterator[None]:
        """Be in a hurry for the block."""
        self._count += 1
        self._is_over.clear()
        try:
            yield
        finally:
            self._count -= 1
            if not self._count:
                self._is_over.set()

    async def give_way(self, seconds: float) -> None:
        """Wait until nobody is in a hurry, but no longer than this."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._is_over.wait()
