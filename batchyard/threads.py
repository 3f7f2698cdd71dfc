"""Blocking calls beside an event loop, in threads that keep no program from ending."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread
from typing import TypeVar

T = TypeVar("T")


async def in_thread(call: Callable[[], T]) -> T:
    """What the call returns, or raise what it raises. A thread goes on after a cancellation.

    `asyncio.to_thread` has few threads, and Python waits at its end for all of them.
    """
    ended: Future[T] = Future()
    # It cannot be cancelled from here on, so its thread may always settle it.
    ended.set_running_or_notify_cancel()

    def work() -> None:
        try:
            ended.set_result(call())
        except Exception as error:  # noqa: BLE001  # whoever awaits the call gets it
            ended.set_exception(error)

    Thread(target=work, name="batchyard", daemon=True).start()
    return await asyncio.wrap_future(ended)
