"""How many rows one process lets into the engine at a time."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class RowRoom:
    """Room for so many rows, given out in the order of asking: a semaphore that weighs."""

    def __init__(self, rows: int) -> None:
        self._free = rows
        self._turn = asyncio.Lock()
        self._freed = asyncio.Condition()

    @asynccontextmanager
    async def taken(self, rows: int) -> AsyncIterator[None]:
        """Hold room for `rows`, once there is some. `rows` must fit into an empty room."""
        # The first in the line waits for its room, and everybody else behind it.
        async with self._turn, self._freed:
            await self._freed.wait_for(lambda: self._free >= rows)
            self._free -= rows
        try:
            yield
        finally:
            self._free += rows
            async with self._freed:
                self._freed.notify_all()
