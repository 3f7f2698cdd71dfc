"""The lines of a batch's output and error file, streamed from its parts in input order.

Memory does not grow with the batch: only a few parts are held at a time.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from collections.abc import Set as AbstractSet
from contextlib import aclosing, suppress
from typing import TypeVar

from dispatcher.input_reader import InputReader
from dispatcher.row_check import RowCheck
from dispatcher.unrun_rows import UnrunReason, error_line, reason_for
from shared import ids
from shared.errors import BatchyardError, NotFoundError
from shared.input.request_lines import custom_id_of, split
from shared.ledger.merging import as_stream, chunked, merged, read_lines, stretches
from shared.ledger.parts import read_section
from shared.slices import Part, PlannedSlice, Section, Slice
from shared.state import BatchRecord, State
from shared.storage import PART_BYTES, ReadBytes, Storage
from shared.tasks import beside

T = TypeVar("T")

#: Slices of which the lines are fetched ahead of the writing: of an output file a few, each with
#: megabytes, and of an error file so many that the next read of the input is on its way.
_OUTPUTS_AHEAD = 4
_ERRORS_AHEAD = 32
#: The `custom_id` of each row of a slice, where it is known.
_Names = Sequence[str | None]
#: Where in a part the lines of one file are.
_SectionOf = Callable[[Part], Section]


class InputLostError(BatchyardError):
    """The object that the batch reads is gone or was replaced."""


class ResultLines:
    """Reads the parts of one batch. Every row that it yields a line for is added to `check`.

    Raises BrokenObjectError or NotFoundError for a part that is not as it was committed.
    """

    def __init__(
        self, state: State, storage: Storage, record: BatchRecord, check: RowCheck
    ) -> None:
        self._state = state
        self._storage = storage
        self._record = record
        self._check = check
        self._input = InputReader(storage, record)
        self._copies: dict[str, InputReader] = {}
        self._reading_without_copy = asyncio.Lock()

    async def output(
        self, planned: AsyncIterator[PlannedSlice] | None = None
    ) -> AsyncGenerator[bytes, None]:
        """The lines of the output file, in chunks; what a large part has of it is a `ReadBytes`.

        Those of these slices alone, if they are given: whole stretches, in order.
        """

        def fetch(planned: PlannedSlice) -> Awaitable[bytes]:
            return self._fetch(planned.part, _output_section)

        planned = planned or self._planned()
        async with aclosing(self._ahead(fetch, planned, _OUTPUTS_AHEAD)) as stretches_:
            async for stretch, body in stretches_:
                if body is not None:
                    await beside(self._check.add_lines, body)
                    yield body
                    continue
                streams = [self._lines(one, _output_section) for one in stretch]
                async for chunk in self._merge(streams):
                    yield chunk

    async def errors(self, closing: UnrunReason | None, *, has_names: bool) -> AsyncIterator[bytes]:
        """The lines of the error file, in chunks. Read them after those of the output.

        Rows that never ran get a line with their reason, which is `closing` where they have none of
        their own. Without names, such a line has a `custom_id` of null. Raises InputLostError if
        the names cannot be read.
        """

        async def fetch(planned: PlannedSlice) -> tuple[bytes, _Names | None]:
            body = self._fetch(planned.part, _error_section)
            if reason_for(self._record, planned, closing) is None:
                return await body, None
            names = self._names(planned.slice, has_names=has_names)
            return await asyncio.gather(body, names)

        planned = self._planned()
        async with aclosing(self._ahead(fetch, planned, _ERRORS_AHEAD)) as stretches_:
            async for stretch, found in stretches_:
                reasons = [reason_for(self._record, planned, closing) for planned in stretch]
                if found is not None:
                    body, names = found
                    await beside(self._check.add_lines, body)
                    yield self._with_unrun(stretch[0], body, reasons[0], names)
                    continue
                streams = [self._lines(one, _error_section) for one in stretch]
                unrun = [
                    self._unrun_among(planned, reason, has_names=has_names)
                    for planned, reason in zip(stretch, reasons, strict=True)
                    if reason is not None
                ]
                streams += [as_stream(lines) for lines in await asyncio.gather(*unrun)]
                async for chunk in self._merge(streams):
                    yield chunk

    def _with_unrun(
        self,
        planned: PlannedSlice,
        body: bytes,
        reason: UnrunReason | None,
        names: _Names | None,
    ) -> bytes:
        """The slice's error lines and those of its rows that never ran, in order."""
        if reason is None or names is None:
            return body
        lines = self._unrun(planned.slice, reason, names)
        for row in lines:
            self._check.add(row)
        found = [line for line in body.split(b"\n") if line]
        lines |= {ids.row_of_result(line): line + b"\n" for line in found}
        return b"".join(lines[row] for row in sorted(lines))

    async def _unrun_among(
        self, planned: PlannedSlice, reason: UnrunReason, *, has_names: bool
    ) -> list[bytes]:
        """The lines of the slice's rows that never ran; its stretch has several slices."""
        # Its rows are added to the check only when their lines are merged.
        section = self._lines(planned, _error_section)
        refused = {ids.row_of_result(line) async for line in section}
        names = await self._names(planned.slice, has_names=has_names)
        return list(self._unrun(planned.slice, reason, names, other_than=refused).values())

    def _unrun(
        self,
        slice_: Slice,
        reason: UnrunReason,
        names: _Names,
        *,
        other_than: AbstractSet[int] = frozenset(),
    ) -> dict[int, bytes]:
        """An error line for each row of the slice that has no line yet, by row."""
        return {
            row: error_line(self._record.id, row, name, reason)
            for row, name in zip(slice_.row_numbers, names, strict=True)
            if row not in self._check and row not in other_than
        }

    async def _names(self, slice_: Slice, *, has_names: bool) -> _Names:
        """The `custom_id` of each row of the slice. Raises InputLostError."""
        if not has_names:
            return [None] * slice_.rows
        try:
            lines = await self._own_lines(slice_)
        except NotFoundError as error:
            raise InputLostError(f"Batch {self._record.id}: its input cannot be read.") from error
        return [custom_id_of(line) for line in lines]

    async def _own_lines(self, slice_: Slice) -> Sequence[bytes]:
        """The slice's lines. Raises NotFoundError."""
        if slice_.copy is None:
            return slice_.pick(split(await self._input.get(slice_.start, slice_.end)))
        # Names stand in both, and the lines of an addition are where they cannot get lost.
        name, start, end = (copy := slice_.copy.plain or slice_.copy)[:3]
        if name not in self._copies:
            # Slices of one copy follow each other.
            self._copies = {name: InputReader(self._storage, self._record, copy=name)}
        with suppress(NotFoundError):
            lines = await self._copies[name].get(start, end)
            if copy.fits(lines):
                return split(lines)
        if copy.is_input:
            raise NotFoundError(f"Batch {self._record.id} has lost the copy {name}.")
        async with self._reading_without_copy:
            return slice_.pick(split(await self._input.get(slice_.start, slice_.end)))

    async def _ahead(
        self,
        fetch: Callable[[PlannedSlice], Awaitable[T]],
        planned: AsyncIterator[PlannedSlice],
        most: int,
    ) -> AsyncGenerator[tuple[list[PlannedSlice], T | None], None]:
        """Each stretch in order. A lone slice comes with what is fetched for it, several with None.

        At most so many are fetched ahead. Several are never held whole.
        """
        ahead: deque[tuple[list[PlannedSlice], asyncio.Future[T] | None]] = deque()
        try:
            async for stretch in stretches(planned):
                is_lone = len(stretch) == 1
                ahead.append(
                    (stretch, asyncio.ensure_future(fetch(stretch[0])) if is_lone else None)
                )
                if len(ahead) >= most:
                    first, found = ahead.popleft()
                    yield first, await found if found else None
            while ahead:
                first, found = ahead.popleft()
                yield first, await found if found else None
        finally:
            left = [found for _, found in ahead if found]
            for found in left:
                found.cancel()
            await asyncio.gather(*left, return_exceptions=True)

    async def _fetch(self, part: Part | None, section: _SectionOf) -> bytes:
        if part is None:
            return b""
        place = section(part)
        body = await read_section(self._storage, part, place)
        if len(body) < PART_BYTES:
            return body
        return ReadBytes.at(body, part.key, part.etag, place.start)

    async def _planned(self) -> AsyncIterator[PlannedSlice]:
        if plan := self._record.fields.get("plan"):
            async for page in self._state.slices.pages(self._record.id, plan):
                for planned in page:
                    yield planned

    def _lines(self, planned: PlannedSlice, section: _SectionOf) -> AsyncGenerator[bytes, None]:
        if planned.part is None:
            return as_stream(())
        return read_lines(self._storage, planned.part.key, section(planned.part))

    async def _merge(
        self, streams: Sequence[AsyncGenerator[bytes, None]]
    ) -> AsyncGenerator[bytes, None]:
        """The lines of all streams in the order of their rows, in chunks."""
        async with aclosing(chunked(merged(streams))) as chunks:
            async for lines in chunks:
                chunk = b"".join(lines)
                await beside(self._check.add_lines, chunk)
                yield chunk


def _output_section(part: Part) -> Section:
    return part.output


def _error_section(part: Part) -> Section:
    return part.error
