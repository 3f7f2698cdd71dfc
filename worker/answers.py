"""The answers of rows, kept for a while: a row that is asked for again does not run again.

A lane job that dies leaves rows in the engine, and answers that nobody committed. The next lane job
asks for the same rows.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Hashable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

from worker.engine_errors import Result
from worker.engine_results import SERVER_ERROR

T = TypeVar("T")


class _Asker(asyncio.Future[T]):
    """What one asker waits for; to cancel it is to leave."""

    def __init__(self, leave: "Callable[[_Asker[T]], None]") -> None:
        super().__init__()
        self._leave = leave

    def cancel(self, msg: Any | None = None) -> bool:
        if not super().cancel(msg):
            return False
        self._leave(self)
        return True


@dataclass(slots=True)
class _Running(Generic[T]):
    task: "asyncio.Task[T]"
    askers: "set[_Asker[T]]" = field(default_factory=set)


class Answers(Generic[T]):
    """Belongs to one event loop. Keeps up to `max_bytes` for up to `seconds`.

    What a run returns is an answer, or says why there is none, which is told and not kept.
    """

    def __init__(
        self, *, max_bytes: int, seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._max_bytes = max_bytes
        self._seconds = seconds
        self._clock = clock
        self._running: dict[Hashable, _Running[Any]] = {}
        self._kept: OrderedDict[Hashable, tuple[float, Result]] = OrderedDict()
        self._bytes = 0

    def ask(
        self, row: Hashable, run: Callable[[], Coroutine[Any, Any, Result | T]]
    ) -> "asyncio.Future[Result | T]":
        """The row's answer: the one that is kept, that of the run under way, or that of `run`.

        A run is cancelled when all who asked for it have cancelled.
        """
        self._drop_old()
        running = self._running.get(row)
        asker: _Asker[Result | T] = _Asker(partial(self._leave, row))
        if (kept := self._kept.get(row)) is not None:
            asker.set_result(kept[1])
            return asker
        if running is None:
            running = self._running[row] = _Running(asyncio.ensure_future(run()))
            running.task.add_done_callback(partial(self._ended, row, running))
        running.askers.add(asker)
        return asker

    def _leave(self, row: Hashable, asker: _Asker[Any]) -> None:
        running = self._running.get(row)
        # It may have been answered meanwhile, and run again for others.
        if running is None or asker not in running.askers:
            return
        running.askers.discard(asker)
        if not running.askers:
            del self._running[row]
            running.task.cancel()

    def _ended(self, row: Hashable, running: _Running[Any], task: "asyncio.Task[Any]") -> None:
        if self._running.get(row) is running:
            del self._running[row]
        error = None if task.cancelled() else task.exception()
        for asker in running.askers:
            if asker.done():
                continue
            if task.cancelled():
                asker.cancel()
            elif error is not None:
                asker.set_exception(error)
            else:
                asker.set_result(task.result())
        if task.cancelled() or error is not None:
            return
        result = task.result()
        # Another run may do better than a server's error.
        if isinstance(result, tuple) and result[0] < SERVER_ERROR and row not in self._kept:
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
