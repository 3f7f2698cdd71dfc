"""The answers of rows, kept for a while: a row that is asked for again does not run again.

A lane job that dies leaves rows in the engine, and answers that nobody committed. The next lane job
asks for the same rows.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Hashable
from dataclasses import dataclass
from typing import Any

from worker.engine_errors import Result
from worker.engine_results import SERVER_ERROR


@dataclass(slots=True)
class _Running:
    task: "asyncio.Task[Result]"
    askers: int = 0


class Answers:
    """Belongs to one event loop. Keeps up to `max_bytes` for up to `seconds`."""

    def __init__(
        self, *, max_bytes: int, seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._max_bytes = max_bytes
        self._seconds = seconds
        self._clock = clock
        self._running: dict[Hashable, _Running] = {}
        self._kept: OrderedDict[Hashable, tuple[float, Result]] = OrderedDict()
        self._bytes = 0

    async def answer(self, row: Hashable, run: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
        """The row's answer: the one that is kept, that of the run under way, or that of `run`.

        A run is cancelled when nobody waits for it any more.
        """
        self._drop_old()
        if (kept := self._kept.get(row)) is not None:
            return kept[1]
        running = self._running.get(row)
        if running is None:
            running = self._running[row] = _Running(asyncio.ensure_future(run()))
            running.task.add_done_callback(lambda task: self._ended(row, task))
        running.askers += 1
        try:
            return await asyncio.shield(running.task)
        finally:
            running.askers -= 1
            if not running.askers and not running.task.done():
                self._running.pop(row, None)
                running.task.cancel()
                await asyncio.wait([running.task])

    def _ended(self, row: Hashable, task: "asyncio.Task[Result]") -> None:
        if (running := self._running.get(row)) is not None and running.task is task:
            del self._running[row]
        if task.cancelled() or task.exception() is not None:
            return
        result = task.result()
        # Another run may do better than a server's error.
        if result[0] < SERVER_ERROR and row not in self._kept:
            self._kept[row] = (self._clock() + self._seconds, result)
            self._bytes += len(result[1])

    def _drop_old(self) -> None:
        now = self._clock()
        while self._kept:
            until, result = next(iter(self._kept.values()))
            if until > now and self._bytes <= self._max_bytes:
                break
            self._kept.popitem(last=False)
            self._bytes -= len(result[1])
