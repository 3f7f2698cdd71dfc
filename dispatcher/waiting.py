"""Futures of callers who wait for work that is done for several callers at once."""

import asyncio


def resolve(done: asyncio.Future[None], error: BaseException | None) -> None:
    """Give the caller the outcome, unless it has stopped waiting."""
    if done.cancelled():
        return
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)
