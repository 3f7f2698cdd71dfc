"""Runs rows at once and groups their results, so that not each of them costs a message."""

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


async def in_groups(
    rows: Iterable[Coroutine[Any, Any, T]], *, seconds: float
) -> AsyncGenerator[list[tuple[int, T]], None]:
    """The rows' results with their positions; a result waits up to `seconds` for others.

    Closing the generator cancels the rows that still run, and waits for their ends.
    """
    positions = {asyncio.ensure_future(row): position for position, row in enumerate(rows)}
    running = set(positions)
    try:
        while running:
            done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            if running:
                more, running = await asyncio.wait(running, timeout=seconds)
                done |= more
            yield sorted((positions[row], row.result()) for row in done)
    finally:
        for row in running:
            row.cancel()
        await asyncio.gather(*running, return_exceptions=True)
