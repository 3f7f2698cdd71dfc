"""Commands that are called in the same moment share one round trip to Redis.

A connection for each of them would cost several times more, on both sides of it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple


class Command(NamedTuple):
    """A command with redis-py's options for its answer."""

    args: Sequence[Any]
    options: Mapping[str, Any]


#: Sends commands and returns an answer for each: an exception where Redis has refused it.
Send = Callable[[Sequence[Command]], Awaitable[Sequence[Any]]]


class Trips:
    """Collects the commands of one turn of the event loop."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._waiting: list[tuple[Command, asyncio.Future[Any]]] = []
        #: The trip that has not begun.
        self._next: asyncio.Task[None] | None = None
        self._under_way: set[asyncio.Task[None]] = set()

    async def call(self, command: Command) -> Any:
        """Redis's answer. Raises what Redis or the round trip raised."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append((command, answer))
        # One that was cancelled before it began has taken nothing along.
        if self._next is None or self._next.done():
            trip = self._next = asyncio.create_task(self._make())
            self._under_way.add(trip)
            trip.add_done_callback(self._under_way.discard)
        return await answer

    async def end(self) -> None:
        """End the round trips that are under way; their callers are cancelled."""
        trips = list(self._under_way)
        for trip in trips:
            trip.cancel()
        await asyncio.gather(*trips, return_exceptions=True)
        for _, answer in self._waiting:
            answer.cancel()

    async def _make(self) -> None:
        calls, self._waiting, self._next = self._waiting, [], None
        try:
            # Nobody waits any more for those whose callers were cancelled.
            calls = [call for call in calls if not call[1].done()]
            answers = await self._send([command for command, _ in calls]) if calls else ()
        except asyncio.CancelledError:
            for _, waiting in calls:
                waiting.cancel()
            raise
        except Exception as error:  # noqa: BLE001  # every caller gets it
            answers = [error] * len(calls)
        for (_, waiting), answer in zip(calls, answers, strict=True):
            if waiting.done():
                continue
            if isinstance(answer, Exception):
                waiting.set_exception(answer)
            else:
                waiting.set_result(answer)
