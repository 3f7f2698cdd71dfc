"""Reliable cancellation of asyncio tasks, what has to be done all the same, and work in threads."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

#: What has fewer takes less time than a thread costs.
_MANY_BYTES = 128 * 1024


async def beside(work: Callable[[bytes], T], data: bytes) -> T:
    """What the work makes of these bytes. If they are many, the event loop goes on meanwhile."""
    if len(data) < _MANY_BYTES:
        return work(data)
    return await asyncio.to_thread(work, data)


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


async def see_through(work: Coroutine[Any, Any, None], *, seconds: float) -> None:
    """Clean up although one is cancelled, and perhaps again, as `end` does; raise anew afterwards.

    A cancellation after so many seconds ends it.
    """
    task, until = asyncio.create_task(work), time.monotonic() + seconds
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            if time.monotonic() > until:
                task.cancel()
                raise
