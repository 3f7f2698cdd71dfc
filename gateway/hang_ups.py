"""Ends work whose client has hung up."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect
from starlette.types import Receive

T = TypeVar("T")


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """What the work returns. Raises ClientDisconnect, and cancels it, when the client hangs up.

    The body of the call has to be read already.
    """
    working = asyncio.ensure_future(work)
    going = asyncio.ensure_future(_hang_up(receive))
    try:
        await asyncio.wait([working, going], return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        for task in (working, going):
            task.cancel()
        await asyncio.wait([working, going])


async def _hang_up(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
