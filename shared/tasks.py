"""Ending tasks of asyncio for certain."""

import asyncio
from typing import Any


async def end(*tasks: "asyncio.Task[Any]", patience_seconds: float = 1) -> None:
    """Cancel the tasks and wait until all have ended; their exceptions stay in the tasks.

    Once is not enough: redis-py and aiormq wait through `asyncio.wait_for`, which in Python 3.11
    takes a cancellation for itself when what it waits for is done in the same moment.
    """
    while running := [task for task in tasks if not task.done()]:
        for task in running:
            task.cancel()
        await asyncio.wait(running, timeout=patience_seconds)
    # Looked at here, so that asyncio does not log it as forgotten.
    await asyncio.gather(*tasks, return_exceptions=True)
