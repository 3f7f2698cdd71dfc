"""Runs rows at once and groups their results, so that not each of them costs a message."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Iterable
from typing import TypeVar

T = TypeVar("T")

#: How long a replica's result waits for others before it is sent, in seconds. A message costs as
#: much as the answers of several short rows, and the last result of a call never waits.
GROUP_SECONDS = 0.05
#: The same where a row takes one step: a call is over soon, and costs little more than a message.
VECTORS_GROUP_SECONDS = 0.2


async def in_groups(
    rows: Iterable[Awaitable[T]], *, seconds: float
) -> AsyncGenerator[list[tuple[int, T]], None]:
    """The rows' results with their positions; a result waits up to `seconds` for others.

    Closing the generator cancels the rows that still run. Coroutines have ended by then; a future,
    as of `Answers.ask`, ends at once, whatever goes on behind it.
    """
    ended: list[asyncio.Future[T]] = []
    is_due = asyncio.Event()

    def end(row: asyncio.Future[T]) -> None:
        # Asking `asyncio.wait` again for each group would look at all rows each time.
        ended.append(row)
        running.discard(row)
        if not running:
            is_due.set()
        elif len(ended) == 1:
            asyncio.get_running_loop().call_later(seconds, is_due.set)

    positions: dict[asyncio.Future[T], int] = {
        asyncio.ensure_future(row): position for position, row in enumerate(rows)
    }
    running = set(positions)
    for row in positions:
        row.add_done_callback(end)
    try:
        while running or ended:
            await is_due.wait()
            is_due.clear()
            group = sorted((positions[row], row.result()) for row in ended)
            ended.clear()
            yield group
    finally:
        left = list(running)
        for row in left:
            row.cancel()
        await asyncio.gather(*left, return_exceptions=True)
