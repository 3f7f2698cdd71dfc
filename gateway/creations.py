"""Batches that are created while others are being written share the next write."""

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from shared.errors import TransientError
from shared.ledger.manifests import Manifest
from shared.state import State
from shared.storage import Storage
from shared.submission.accept import Accepted, accept
from shared.submission.together import accept_together
from shared.tasks import end

#: While one write is on its way, another one begins.
_WRITES_AT_ONCE = 2
#: So many are created in one step of Redis.
_MAX_BATCHES = 16


class _Waiting(NamedTuple):
    manifest: Manifest
    created: asyncio.Future[Accepted]
    #: On the monotonic clock.
    since: float


class Creations:
    """Creates batches. One that comes alone is written at once, and waits for no other."""

    def __init__(self, state: State, storage: Storage, *, patience_seconds: float) -> None:
        """Whoever has waited so long for a write is not part of one any more."""
        self._patience_seconds = patience_seconds
        self._state = state
        self._storage = storage
        self._waiting: deque[_Waiting] = deque()
        self._writing = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def accept(self, manifest: Manifest) -> Accepted:
        """Create the batch, as `shared.submission.accept.accept` does.

        Nobody may ever ask for it again. Raises TransientError while Redis or S3 is away or slow.
        """
        if self._writing < _WRITES_AT_ONCE:
            self._writing += 1
            try:
                return await accept(self._state, self._storage, manifest)
            except TransientError as error:
                self._give_up(error)
                raise
            finally:
                self._go_on()
        created: asyncio.Future[Accepted] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(manifest, created, time.monotonic()))
        return await created

    async def end(self) -> None:
        """End the writes whose callers are gone."""
        await end(*self._tasks)

    def _give_up(self, outage: TransientError) -> None:
        """Tell those who wait as well: after their turn, they would hear the same much later."""
        while self._waiting:
            # Each raises an error of its own.
            _tell(self._waiting.popleft(), TransientError(str(outage)))

    def _go_on(self) -> None:
        """Give the place of a write that has ended to those who wait."""
        if not (group := self._next()):
            self._writing -= 1
            return
        task = asyncio.create_task(self._write(group))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _next(self) -> list[_Waiting]:
        group: list[_Waiting] = []
        since = time.monotonic() - self._patience_seconds
        while self._waiting and len(group) < _MAX_BATCHES:
            one = self._waiting.popleft()
            if one.since < since:
                _tell(one, TransientError("Batches take too long to be created."))
            # Its caller may have gone.
            elif not one.created.done():
                group.append(one)
        return group

    async def _write(self, group: Sequence[_Waiting]) -> None:
        try:
            outcomes = await self._outcomes(group)
            outages = [one for one in outcomes if isinstance(one, TransientError)]
            if len(outages) == len(group):
                self._give_up(outages[0])
            for one, outcome in zip(group, outcomes, strict=True):
                _tell(one, outcome)
        finally:
            for one in group:
                one.created.cancel()
            self._go_on()

    async def _outcomes(self, group: Sequence[_Waiting]) -> Sequence[Accepted | BaseException]:
        if len(group) > 1:
            manifests = [one.manifest for one in group]
            return await accept_together(self._state, self._storage, manifests)
        alone = (accept(self._state, self._storage, one.manifest) for one in group)
        return await asyncio.gather(*alone, return_exceptions=True)


def _tell(one: _Waiting, outcome: Accepted | BaseException) -> None:
    """Let the caller, who may have gone, know what became of the batch."""
    if one.created.done():
        return
    if isinstance(outcome, BaseException):
        one.created.set_exception(outcome)
    else:
        one.created.set_result(outcome)
