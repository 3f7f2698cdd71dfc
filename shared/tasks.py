"""Reliable cancellation of asyncio tasks."""

import asyncio
from typing import Any


async def end(*tasks: "asyncio.Task[Any]", patience_seconds: float = 1) -> None:
    """Cancel the tasks until all have ended. Their exceptions are left in the tasks.

    One cancellation is not enough: redis-py and aiormq use `asyncio.wait_for`, which in Python 3.11
    swallows a cancellation if what it waits for finishes in the same moment.
    """
    while running := [task for task in tasks if not task.done()]:
        for task in running:
            task.cancel()
        await asyncio.wait(running, timeout=patience_seconds)
    # This retrieves their exceptions, so that asyncio does not log them as never retrieved.
    await asyncio.gather(*tasks, return_exceptions=True)
