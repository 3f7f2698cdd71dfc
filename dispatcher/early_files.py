"""Output files that are begun while their batches run: a large batch ends soon after its last row.

An early file gets the bytes that the finaliser would write, in the same order, up to the first
slice that has no part yet. It is an unfinished upload until the finaliser takes it. If anything is
wrong with it, it is dropped, and the finaliser makes the file from its beginning.
"""

import asyncio
import hashlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Protocol

import structlog

from dispatcher.duties import repeat
from dispatcher.hurry import Hurry
from dispatcher.result_files import EarlyOutput, ResultFiles, new_check
from dispatcher.result_lines import ResultLines
from shared import crash
from shared.errors import BatchyardError
from shared.ledger.commits import Assembled
from shared.lifecycle import Event, Status
from shared.slices import PlannedSlice
from shared.state import BatchRecord, State
from shared.storage import Storage
from shared.tasks import end, see_through

log = structlog.get_logger()

#: Output without a gap, from a batch's first row on, that is worth an early file: the finaliser
#: makes a whole file of such bytes, or of the parts of so many slices, in some tenths of a second.
_WORTH_BYTES, _WORTH_SLICES = 8 * 1024 * 1024, 24
#: A larger one gains more, so half of the places are for those.
_LARGE_BYTES = 32 * 1024 * 1024
#: Each has up to two parts of an upload in memory while it waits, and a few of its batch while it
#: reads.
_FILES_AT_ONCE = 8
#: A file that does not grow for so long is dropped: its batch is paused, slow or in trouble, and
#: another one may gain more.
_IDLE_SECONDS = 600.0
#: Between two chunks of a file, small batches that are planned or ended go first, for so many
#: seconds at most: what a chunk takes of this process holds each of their steps up.
_GIVE_WAY_SECONDS = 0.1
#: How often Redis is asked what is new.
_LOOK_SECONDS = 0.5
#: For S3 to hear that files are not wanted any more, when the process has to stop.
_STOP_SECONDS = 5.0
#: Batches that are asked for in one look; and those whose records are read, once each.
_ASKED, _MET = 20, 100


class EarlyOutputs(Protocol):
    """Early files, of this process or of another one."""

    async def run(self) -> None:
        """Have them until cancelled."""

    async def take(self, record: BatchRecord, event: Event) -> EarlyOutput | None:
        """The output of a batch that ends by this event, if it was begun and comes to its end."""


class EarlyFiles:
    """Begins the output files of large batches, of a few at a time."""

    def __init__(
        self,
        state: State,
        storage: Storage,
        hurry: Hurry | None = None,
        *,
        worth_bytes: int = _WORTH_BYTES,
        worth_slices: int = _WORTH_SLICES,
        large_bytes: int = _LARGE_BYTES,
        files_at_once: int = _FILES_AT_ONCE,
        idle_seconds: float = _IDLE_SECONDS,
    ) -> None:
        """A file is begun when so much of it is there, and dropped if it stands still so long.

        At most half of the files were not large when they began. None grows while somebody is in
        a `hurry`, for a short time.
        """
        self._state = state
        self._storage = storage
        self._worth_bytes = worth_bytes
        self._worth_slices = worth_slices
        self._large_bytes = large_bytes
        self._files_at_once = files_at_once
        self._idle_seconds = idle_seconds
        self._turn = _Turn(hurry or Hurry())
        self._files: dict[str, _EarlyFile] = {}
        #: Batches that run, in the order of their turns; None for one that gets no early file.
        self._known: dict[str, _Beginning | None] = {}

    async def run(self) -> None:
        """Begin files until cancelled; then drop those that nobody has taken."""
        try:
            await repeat(self.look, every_seconds=_LOOK_SECONDS)
        finally:
            await see_through(self._drop_all(), seconds=_STOP_SECONDS)

    async def look(self) -> None:
        """Begin the files of batches that have become large, and drop what is of no use any more.

        Raises TransientError.
        """
        running = await self._state.batches.in_status(Status.IN_PROGRESS)
        await self._drop_ended(running)
        await self._meet(running)
        waiting = [id_ for id_, known in self._known.items() if known and id_ not in self._files]
        for batch_id in waiting[:_ASKED]:
            if not self._has_place(is_large=True):
                return
            if (known := self._known.pop(batch_id, None)) is not None:
                # Then the others have their turn.
                self._known[batch_id] = known
                has_grown = await known.grow(self._large_bytes)
                # It may have been taken meanwhile.
                if has_grown and self._is_worth(known) and batch_id in self._known:
                    self._begin(known)

    async def take(self, record: BatchRecord, event: Event) -> EarlyOutput | None:
        """The output of a batch that ends by this event, if it was begun and comes to its end.

        The batch's parts are frozen, and the file is made of them.
        """
        # It may run again, because of a part that is broken.
        self._known.pop(record.id, None)
        if (file := self._files.pop(record.id, None)) is None:
            return None
        if event is Event.OUTPUT_COMMITTED and file.is_of(record):
            return await file.finish()
        await file.drop()
        return None

    async def _drop_all(self) -> None:
        files = [*self._files.values()]
        self._files.clear()
        await asyncio.gather(*(file.drop() for file in files))

    def _has_place(self, *, is_large: bool) -> bool:
        others = sum(not file.is_large for file in self._files.values())
        is_full = len(self._files) >= self._files_at_once
        return not is_full and (is_large or others < self._files_at_once // 2)

    def _is_worth(self, known: "_Beginning") -> bool:
        return known.bytes >= self._worth_bytes or known.slices >= self._worth_slices

    def _begin(self, known: "_Beginning") -> None:
        """Begin its file, if there is a place for one of its size."""
        is_large = known.bytes >= self._large_bytes
        if not self._has_place(is_large=is_large):
            return
        file = _EarlyFile(
            self._state,
            self._storage,
            known.record,
            self._turn,
            self._idle_seconds,
            is_large=is_large,
        )
        # If it is dropped because it stands still, there is another one once it could grow.
        known.walk = file.walk
        self._files[known.record.id] = file
        log.debug("early_file.begun", batch_id=known.record.id, bytes=known.bytes)

    async def _drop_ended(self, running: Sequence[str]) -> None:
        # While one is dropped, another one may be taken.
        for batch_id, file in [*self._files.items()]:
            if file.has_ended and self._files.pop(batch_id, None) is not None:
                if not file.stood_still:
                    self._known[batch_id] = None
                await file.drop()
        left = [*self._files.keys() - set(running)]
        statuses = await self._state.batches.statuses(left) if left else {}
        for batch_id in left:
            # One that is finalizing will be taken.
            is_over = statuses.get(batch_id) not in (Status.IN_PROGRESS, Status.FINALIZING)
            if is_over and (over := self._files.pop(batch_id, None)) is not None:
                await over.drop()

    async def _meet(self, running: Sequence[str]) -> None:
        """Learn which of these batches may get an early file, and forget all others."""
        still = {*running, *self._files}
        self._known = {id_: known for id_, known in self._known.items() if id_ in still}
        new = [id_ for id_ in running if id_ not in self._known][:_MET]
        for record in await self._state.batches.many(new) if new else []:
            self._known[record.id] = _Beginning(self._state, record) if may_grow(record) else None


class _Walk:
    """Goes over a batch's slices in order, once each, as far as there are parts of them."""

    def __init__(self, state: State, record: BatchRecord) -> None:
        self._slices = state.slices
        self._place = record.id, record.fields["plan"]
        self._next = 0
        #: The first slice that had no part.
        self._missing = 0
        #: Of the slices it has gone over, and their parts.
        self._digest = hashlib.sha256()

    async def can_go_on(self) -> bool:
        """Whether there is a part of the slice for which it waits."""
        found = self._slices.some(*self._place, [self._missing])
        return any([one.part is not None async for one in found])

    async def whole(self) -> AsyncGenerator[PlannedSlice, None]:
        """The slices of the next stretches that have all their parts."""
        stretch: list[PlannedSlice] = []
        async for one in self._rest():
            if stretch and one.slice.first_row != stretch[0].slice.first_row:
                for passed in stretch:
                    yield self._passed(passed)
                stretch = []
            self._missing = one.index
            if one.part is None:
                return
            stretch.append(one)
        # There are no more slices.
        self._missing = self._next + len(stretch)
        for passed in stretch:
            yield self._passed(passed)

    async def all(self) -> AsyncGenerator[PlannedSlice, None]:
        """All slices that are left, with or without parts."""
        async for one in self._rest():
            yield self._passed(one)

    async def has_changed(self) -> bool:
        """Whether a slice or a part that it has gone over is another one by now."""
        digest = hashlib.sha256()
        async for page in self._slices.pages(*self._place):
            for one in page:
                digest.update(_text(one))
        return digest.digest() != self._digest.digest()

    async def _rest(self) -> AsyncIterator[PlannedSlice]:
        async for page in self._slices.pages(*self._place, first=self._next):
            for one in page:
                yield one

    def _passed(self, one: PlannedSlice) -> PlannedSlice:
        self._next = one.index + 1
        self._digest.update(_text(one))
        return one


class _Beginning:
    """How much of a running batch's output is there without a gap."""

    def __init__(self, state: State, record: BatchRecord) -> None:
        self.record = record
        self.walk = _Walk(state, record)
        self.bytes = self.slices = 0

    async def grow(self, enough: int) -> bool:
        """Look for more, until there is enough; whether there is some."""
        if not await self.walk.can_go_on():
            return False
        async with aclosing(self.walk.whole()) as slices:
            async for one in slices:
                self.slices += 1
                self.bytes += one.part.output_bytes if one.part else 0
                if self.bytes >= enough:
                    break
        return True


class _StoppedError(BatchyardError):
    """The file is of no use."""


class _Turn:
    """One file grows at a time: what several read and send at once would delay small batches."""

    def __init__(self, hurry: Hurry) -> None:
        self._hurry = hurry
        self._lock = asyncio.Lock()

    async def give_way(self) -> None:
        """Let those go first who are in a hurry; whoever has the turn keeps it."""
        await self._hurry.give_way(_GIVE_WAY_SECONDS)

    @asynccontextmanager
    async def taken(self, unless: asyncio.Event) -> AsyncIterator[None]:
        """Have the turn, or none if that event comes first."""
        waiting = asyncio.create_task(self._lock.acquire())
        event = asyncio.create_task(unless.wait())
        try:
            await asyncio.wait([waiting, event], return_when=asyncio.FIRST_COMPLETED)
            yield
        finally:
            try:
                await end(waiting, event)
            finally:
                # Whatever ends the clean-up, the others go on.
                if waiting.done() and not waiting.cancelled():
                    self._lock.release()


class _EarlyFile:
    """An output file that is being written while its batch runs."""

    def __init__(
        self,
        state: State,
        storage: Storage,
        record: BatchRecord,
        turn: _Turn,
        idle_seconds: float,
        *,
        is_large: bool,
    ) -> None:
        self.walk = _Walk(state, record)
        #: Whether it was when it began.
        self.is_large = is_large
        self.stood_still = False
        self._record = record
        self._turn = turn
        self._idle_seconds = idle_seconds
        self._check = new_check(record)
        self._lines = ResultLines(state, storage, record, self._check)
        #: Whether the batch's parts are frozen.
        self._frozen = asyncio.Event()
        self._writing = asyncio.create_task(self._write(ResultFiles(state, storage)))

    @property
    def has_ended(self) -> bool:
        return self._writing.done()

    def is_of(self, record: BatchRecord) -> bool:
        """Whether the batch still has the plan that it had."""
        names = ("plan", "total", "slices_total")
        return all(record.fields.get(name) == self._record.fields[name] for name in names)

    async def finish(self) -> EarlyOutput | None:
        """Write what is left; None if the file is not that of the batch as it is now."""
        self._frozen.set()
        try:
            await asyncio.wait([self._writing])
        finally:
            await self.drop()
        if self._writing.cancelled() or self._writing.exception() is not None:
            return None
        return EarlyOutput(self._writing.result(), self._check)

    async def drop(self) -> None:
        """Stop, and leave nothing in S3 unless the file is whole."""
        await end(self._writing)
        if not self._writing.cancelled() and (error := self._writing.exception()) is not None:
            log.info("early_file.dropped", batch_id=self._record.id, reason=str(error))

    async def _write(self, files: ResultFiles) -> Assembled | None:
        async with aclosing(self._chunks()) as chunks:
            return await files.write_output(self._record, Event.OUTPUT_COMMITTED, chunks)

    async def _chunks(self) -> AsyncGenerator[bytes, None]:
        """What `ResultLines.output` gives for a batch whose parts are frozen, as it comes."""
        while not self._frozen.is_set():
            began = time.monotonic()
            async with (
                self._turn.taken(unless=self._frozen),
                aclosing(self._lines.output(self.walk.whole())) as chunks,
            ):
                async for chunk in chunks:
                    yield chunk
                    if not self._frozen.is_set():
                        await self._turn.give_way()
            # Whoever gets this keeps no other chunk while there is none.
            chunk = b""
            yield chunk
            crash.point("early_files.waits")
            await self._wait(began + _LOOK_SECONDS)
        async for chunk in self._lines.output(self.walk.all()):
            yield chunk
        if await self.walk.has_changed():
            raise _StoppedError("Parts of it were made again.")

    async def _wait(self, look_at: float) -> None:
        """Wait until more can be written, or all of it; look first at that monotonic time.

        Raises _StoppedError.
        """
        since = time.monotonic()
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(look_at - time.monotonic()):
                    await self._frozen.wait()
            if self._frozen.is_set() or await self.walk.can_go_on():
                return
            if time.monotonic() - since > self._idle_seconds:
                self.stood_still = True
                raise _StoppedError("It stands still.")
            look_at = time.monotonic() + _LOOK_SECONDS


def may_grow(record: BatchRecord) -> bool:
    """Whether the batch runs and has several slices, and they are all that it will have."""
    is_closed = "open_model" not in record.fields
    return record.status is Status.IN_PROGRESS and record.number("slices_total") > 1 and is_closed


def _text(one: PlannedSlice) -> bytes:
    return repr(one).encode()
