"""Batches that close: at the moment their window ends, or when they are cancelled.

Slices that have not begun are taken back at once. The lane jobs hear that the batch closes, and
hand in what they have of the others; after a little time, nothing waits for them.
"""

import asyncio
import time
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from math import inf

import structlog

from dispatcher.duties import Duties
from dispatcher.traces import naming
from shared.errors import BrokenObjectError, ConflictError, InvalidTransitionError
from shared.lifecycle import Event, Status
from shared.state import BatchRecord, State
from shared.storage import Storage
from shared.submission.additions import close

log = structlog.get_logger()

#: Lane jobs hear at once that a batch closes. This is for handing in its results so far.
GRACE_SECONDS = 1.0
#: Windows are checked this often even if no bell rings.
_SWEEP_SECONDS = 1.0
#: Bells may ring thousands of times a second.
_PAUSE_SECONDS = 0.05
#: Calls to Redis at a time.
_AT_ONCE = 50


class Windows:
    """Closes batches whose window has passed, and frees closing ones from lane jobs.

    Only the leader runs one.
    """

    def __init__(
        self, state: State, storage: Storage | None = None, *, grace_seconds: float = GRACE_SECONDS
    ) -> None:
        """Without a storage, there are no open batches."""
        self._state = state
        self._storage = storage
        self._grace_seconds = grace_seconds
        #: The lane jobs' deadline for each closing batch, on the monotonic clock.
        self._grace_ends: dict[str, float] = {}
        #: Open batches are closed in S3, which may take its time or fail: no other waits for that.
        self._open = Duties()

    async def watch(self) -> None:
        """Close each window at its end, until cancelled. Raises TransientError without Redis."""
        try:
            async with self._state.bells("dispatcher") as bells:
                while True:
                    wait = await self.close()
                    await asyncio.sleep(_PAUSE_SECONDS)
                    await bells.wait(min(wait, _SWEEP_SECONDS))
        finally:
            await self._open.end()

    async def close(self) -> float:
        """Close what has passed. Returns the seconds until there is more to do.

        Open batches may be closed only after that.
        A batch that is validating is closed as soon as it runs; until then its rows are unknown.
        """
        passed = 0
        closing: set[str] = set()
        # All of them: batches that take long to end must not hide the others.
        while overdue := await self._state.batches.past_window(first=passed):
            passed += len(overdue)
            statuses = await self._state.batches.statuses(overdue)
            closing |= {one for one in overdue if statuses.get(one) is not Status.VALIDATING}
            await self._close_all(statuses)
        cancelling = await self._state.batches.in_status(Status.CANCELLING)
        closing.update(cancelling)
        await self._close_all(dict.fromkeys(cancelling, Status.CANCELLING))
        self._grace_ends = {one: self._grace_ends[one] for one in closing & self._grace_ends.keys()}
        next_grace = min(self._grace_ends.values(), default=inf) - time.monotonic()
        return min(await self._state.batches.seconds_to_next_window(), max(0.0, next_grace))

    async def _close_all(self, statuses: Mapping[str, Status]) -> None:
        found = [one for one in statuses.items() if one[1] is not Status.VALIDATING]
        for first in range(0, len(found), _AT_ONCE):
            await asyncio.gather(*(self._close(*one) for one in found[first : first + _AT_ONCE]))

    async def _close(self, batch_id: str, status: Status) -> None:
        if status is Status.IN_PROGRESS:
            record = await self._state.batches.get(batch_id)
            if self._storage is not None and record.takes_rows:
                self._open.start(batch_id, self._close_open, nullcontext())
                return
            await self._end_window(record)
            # Of the time before a part was broken and it ran again.
            self._grace_ends.pop(batch_id, None)
        now = time.monotonic()
        if batch_id not in self._grace_ends:
            await self._state.claims.take_back(batch_id, unbegun_only=True)
            self._grace_ends[batch_id] = now + self._grace_seconds
        if self._grace_ends[batch_id] <= now:
            if slices := await self._state.claims.take_back(batch_id):
                with naming(await self._state.batches.get(batch_id)):
                    log.warning("claims.taken_back", batch_id=batch_id, slices=slices)
            # No new claim can be made on a batch that is closing, so once is enough.
            self._grace_ends[batch_id] = inf

    async def _end_window(self, record: BatchRecord) -> None:
        with suppress(InvalidTransitionError), naming(record):
            await self._state.apply(record.id, Event.WINDOW_CLOSED, {"window_closed": 1})
            log.info("batch.window_closed", batch_id=record.id)

    async def _close_open(self, batch_id: str) -> None:
        """Close a batch that nobody has closed: with all its rows done, it completes."""
        if self._storage is None:
            return
        try:
            await close(self._state, self._storage, batch_id)
        except ConflictError:
            # It has been cancelled.
            return
        except BrokenObjectError as error:
            # An addition that nobody was told of, at most.
            log.error("addition.broken", batch_id=batch_id, key=error.key, reason=error.reason)  # noqa: TRY400  # the reason says it all
        await self._end_window(await self._state.batches.get(batch_id))
