"""How many rows one process lets into the engine at a time."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class RowLimiter:
    """Like anyio's CapacityLimiter, but each borrower takes many tokens: one per row.

    Tokens are handed out in the order of asking.
    """

    def __init__(self, total_rows: int) -> None:
        self._available = total_rows
        self._turn = asyncio.Lock()
        self._returned = asyncio.Condition()

    @asynccontextmanager
    async def borrowed(self, rows: int) -> AsyncIterator["Borrowed"]:
        """Wait until `rows` tokens are free, and hold those that are not given back earlier.

        `rows` may not exceed the total.
        """
        # The first in line waits for its tokens, and everybody else behind it.
        async with self._turn, self._returned:
            await self._returned.wait_for(lambda: self._available >= rows)
            self._available -= rows
        borrowed = Borrowed(self, rows)
        try:
            yield borrowed
        finally:
            await borrowed.give_back(borrowed.rows)

    async def take_back(self, rows: int) -> None:
        self._available += rows
        async with self._returned:
            self._returned.notify_all()


class Borrowed:
    """The tokens that one borrower holds."""

    def __init__(self, limiter: RowLimiter, rows: int) -> None:
        self._limiter = limiter
        self.rows = rows

    async def give_back(self, rows: int) -> None:
        """Give tokens back before the end, because so many rows are done."""
        self.rows -= rows
        await self._limiter.take_back(rows)
