"""The way of a row into vLLM and out again: waits for its turn in the engine's queue."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from shared.errors import BatchyardError
from shared.ordering.work import Work
from shared.slices import SliceUsage
from worker.engine_queue import EngineLoad, EngineQueue, QueuedRow


class WithdrawnError(BatchyardError):
    """The row was withdrawn before it entered."""


class Entrance:
    """Belongs to the event loop of the replica."""

    def __init__(self, queue: EngineQueue, clock: Callable[[], float] = time.time) -> None:
        self._queue = queue
        self._clock = clock
        self._turns: dict[QueuedRow, asyncio.Future[None]] = {}
        self._is_due = False

    @asynccontextmanager
    async def entered(self, work: Work) -> AsyncIterator[QueuedRow]:
        """Wait until the row may enter; it is inside while the context is open.

        Raises WithdrawnError.
        """
        row = self._queue.add(work)
        turn = self._turns[row] = asyncio.get_running_loop().create_future()
        self._admit_soon()
        try:
            await turn
            yield row
        finally:
            self._turns.pop(row, None)
            self._queue.leave(row, self._clock())
            self._admit_soon()

    def withdraw(self, batch_id: str) -> None:
        """Let no row of the batch that waits enter."""
        for row, turn in self._turns.items():
            if row.work.batch_id == batch_id and not turn.done():
                turn.set_exception(WithdrawnError("The row was withdrawn."))

    def learn(self, row: QueuedRow, usage: SliceUsage) -> None:
        """A row that was inside has an answer."""
        self._queue.learn(row, usage)

    def note(self, load: EngineLoad) -> None:
        """The engine has ended a step."""
        self._queue.note(load, self._clock())
        self._admit_soon()

    def _admit_soon(self) -> None:
        """Let rows enter when all that happens at this moment has happened: many leave together."""
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._admit)

    def _admit(self) -> None:
        self._is_due = False
        for row in self._queue.admit(self._clock()):
            turn = self._turns.pop(row)
            if not turn.done():  # who waited was cancelled a moment ago
                turn.set_result(None)
