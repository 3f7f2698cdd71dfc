"""The result lines of a batch in one order from first to last, before its end as after it.

Before the end they come from the parts, afterwards from the output and error file: the same lines
at the same places, so a reader may stop anywhere and go on from there later.
"""

from array import array
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from typing import Literal, NamedTuple

import msgspec

from gateway.files import live_file
from shared import ids
from shared.errors import InvalidInputError, NotFoundError
from shared.ledger.merging import chunked, merged, read_lines, stretches
from shared.lifecycle import Status
from shared.slices import PlannedSlice
from shared.state import BatchRecord, FileRecord, State
from shared.storage import Storage

Order = Literal["input", "completion"]

_HAVE_FILES = (Status.COMPLETED, Status.EXPIRED, Status.CANCELLED)
#: A search in a file ends when its place is known this closely, and reads so much at a time.
_NEAR_BYTES = 128 * 1024
_LOOK_BYTES = 16 * 1024


class ResultLines:
    """A batch's results, a line a row, by their places from 0 on.

    In input order a line's place is its row, and all before the first row without a result can be
    read. In the order of completion slices follow each other as they were committed; rows that
    never ran come last, once the batch has ended.
    """

    def __init__(self, state: State, storage: Storage, batch: BatchRecord, order: Order) -> None:
        self._state = state
        self._storage = storage
        self._batch = batch
        self._order = order

    async def end(self, start: int) -> int:
        """The place after the last line that can be read now, if one reads from `start`.

        Raises InvalidInputError when the order of completion is not known any more.
        """
        if "plan" not in self._batch.fields:
            return start
        if self._batch.status in _HAVE_FILES:
            if self._order == "completion":
                await self._require_order()
            return self._batch.number("total")
        if self._order == "completion":
            return max(start, self._batch.number("completed") + self._batch.number("failed"))
        end = start
        async for stretch in self._stretches_from(start):
            lacking = [
                piece.slice.row_numbers[0]
                for piece in stretch
                if piece.part is None or piece.part.rows < piece.slice.rows
            ]
            if lacking:
                return max(end, min(lacking))
            end = stretch[0].slice.first_row + sum(piece.slice.rows for piece in stretch)
        return end

    async def read(self, start: int, end: int) -> AsyncGenerator[bytes, None]:
        """The lines of places [start, end), several at a time.

        Raises NotFoundError when the files are gone.
        """
        place = start
        if self._batch.status not in _HAVE_FILES:
            try:
                async with aclosing(chunked(self._from_parts(start, end))) as chunks:
                    async for chunk in chunks:
                        place += len(chunk)
                        yield b"".join(chunk)
            except NotFoundError:
                # The batch ended meanwhile, and its parts are swept.
                self._batch = await self._state.batches.get(self._batch.id)
                if self._batch.status not in _HAVE_FILES:
                    raise
            else:
                return
        lines = self._from_files if self._order == "input" else self._from_files_as_completed
        async with aclosing(chunked(lines(place, end))) as chunks:
            async for chunk in chunks:
                yield b"".join(chunk)

    async def _from_parts(self, start: int, end: int) -> AsyncGenerator[bytes, None]:
        if self._order == "input":
            async for stretch in self._stretches_from(start):
                if stretch[0].slice.first_row >= end:
                    return
                async with aclosing(self._lines_of_stretch(stretch)) as lines:
                    async for line in lines:
                        if start <= ids.row_of_result(line) < end:
                            yield line
            return
        async for piece, before in self._commits_from(start, end):
            for line in (await self._lines_of_part(piece))[max(0, start - before) : end - before]:
                yield line

    async def _from_files(self, start: int, end: int) -> AsyncGenerator[bytes, None]:
        files = await self._files()
        streams = [file.lines(await file.seek(start)) for file in files.values()]
        async with aclosing(merged(streams)) as lines:
            async for line in lines:
                row = ids.row_of_result(line)
                if row >= end:
                    return
                if row >= start:
                    yield line

    async def _from_files_as_completed(self, start: int, end: int) -> AsyncGenerator[bytes, None]:
        files = await self._files()
        output, error = files.get("output"), files.get("error")
        starts, ends = await self._output_places()
        async for piece, before in self._commits_from(start, end):
            lines: list[bytes] = []
            if output is not None:
                lines += await _own(output, piece, starts[piece.index], ends[piece.index])
            if error is not None and piece.part is not None and piece.part.error_bytes:
                lines += await _ran(error, piece)
            lines.sort(key=ids.row_of_result)
            for line in lines[max(0, start - before) : end - before]:
                yield line
        run = await self._committed()
        if error is not None and end > run:
            async for line in _not_run(error, max(0, start - run), end - run):
                yield line

    async def _commits_from(self, start: int, end: int) -> AsyncIterator[tuple[PlannedSlice, int]]:
        """The committed slices from that of place `start` on, each with its first line's place."""
        place, last = start, -1
        while place < end:
            found = await self._state.slices.commits(self._batch.id, place)
            fresh = [(index, before) for index, before in found if before > last]
            if not fresh:
                return
            befores = dict(fresh)
            async for piece in self._pieces(list(befores)):
                rows = piece.part.rows if piece.part else 0
                last = befores[piece.index]
                place = last + rows
                if place > start and last < end:
                    yield piece, last

    async def _committed(self) -> int:
        """How many rows ran, of a batch that has ended."""
        rows = 0
        last = await self._state.slices.commits(self._batch.id, self._batch.number("total"))
        for index, before in last:
            async for piece in self._pieces([index]):
                rows = before + (piece.part.rows if piece.part else 0)
        return rows

    async def _output_places(self) -> "tuple[array[int], array[int]]":
        """Where in the output file the lines of each slice's stretch begin and end."""
        starts, ends = array("q"), array("q")
        first_row, begin, place = 0, 0, 0
        async for piece in self._pieces(range(self._batch.number("slices_total"))):
            if piece.slice.first_row != first_row:
                ends.extend([place] * (len(starts) - len(ends)))
                first_row, begin = piece.slice.first_row, place
            starts.append(begin)
            place += piece.part.output_bytes if piece.part else 0
        ends.extend([place] * (len(starts) - len(ends)))
        return starts, ends

    async def _stretches_from(self, row: int) -> AsyncGenerator[list[PlannedSlice], None]:
        """From that of the row on, the slices of each stretch: as a rule one."""
        count = self._batch.number("slices_total")
        low, high, found = 0, count, None
        while high - low > 1:
            middle = (low + high) // 2
            async for piece in self._pieces([middle]):
                if piece.slice.first_row <= row:
                    low, found = middle, piece.slice
                else:
                    high = middle
                break
            else:
                return
        if found is not None and found.mask:
            # The stretch's others may stand before it, one a lane at most.
            before = range(max(0, low - len(self._batch.lanes)), low)
            pieces = [piece async for piece in self._pieces(before)]
            low -= sum(piece.slice.first_row == found.first_row for piece in pieces)
        async for stretch in stretches(self._pieces(range(low, count))):
            yield stretch

    def _pieces(self, indexes: Sequence[int]) -> AsyncIterator[PlannedSlice]:
        return self._state.slices.some(self._batch.id, self._batch.fields["plan"], indexes)

    async def _lines_of_stretch(self, stretch: list[PlannedSlice]) -> AsyncGenerator[bytes, None]:
        """The lines of the stretch's parts in input order; of several never a whole one at once."""
        if len(stretch) == 1:
            for line in await self._lines_of_part(stretch[0]):
                yield line
            return
        parts = [piece.part for piece in stretch if piece.part is not None]
        sections = [
            (part.key, start, end)
            for part in parts
            for start, end in (
                (0, part.output_bytes),
                (part.output_bytes, part.output_bytes + part.error_bytes),
            )
        ]
        streams = [read_lines(self._storage, *section) for section in sections]
        async with aclosing(merged(streams)) as lines:
            async for line in lines:
                yield line

    async def _lines_of_part(self, piece: PlannedSlice) -> list[bytes]:
        """The part's lines in input order."""
        if piece.part is None:
            return []
        return sorted(_split(await self._storage.get(piece.part.key)), key=ids.row_of_result)

    async def _files(self) -> "dict[str, ResultFile]":
        files = {}
        for kind in ("output", "error"):
            file_id = self._batch.fields.get(f"{kind}_file_id")
            if file_id is None:
                continue
            try:
                file = await live_file(self._state, self._batch.tenant, file_id)
            except NotFoundError as error:
                raise NotFoundError(
                    f"The results of batch '{self._batch.id}' are gone: its {kind} file "
                    f"{file_id} was deleted or has expired.",
                    param="batch_id",
                ) from error
            files[kind] = ResultFile(self._storage, file)
        return files

    async def _require_order(self) -> None:
        """Refuse when what only Redis knew has expired."""
        if self._batch.number("total") == 0:
            return
        async for _ in self._pieces([0]):
            return
        raise InvalidInputError(
            f"The order of completion of batch '{self._batch.id}' is kept for a day after its end. "
            "Use order=input from offset 0, or download the output and the error file.",
            param="order",
            code="order_expired",
        )


class ResultFile:
    """An output or error file: result lines in the order of their rows."""

    def __init__(self, storage: Storage, file: FileRecord) -> None:
        self._storage = storage
        self._file = file

    async def get(self, start: int, end: int) -> bytes:
        file = self._file
        return await self._storage.get(
            file.key, start=start, end=end, etag=file.etag, bucket=file.bucket
        )

    async def lines(self, start: int, end: int | None = None) -> AsyncGenerator[bytes, None]:
        """The lines in bytes [start, end), or from `start` on, which begins one."""
        file, rest = self._file, b""
        end = file.bytes if end is None else end
        stream = self._storage.stream(
            file.key, start=start, end=end, etag=file.etag, bucket=file.bucket
        )
        async with aclosing(stream) as chunks:
            async for chunk in chunks:
                *whole, rest = (rest + chunk).split(b"\n")
                for line in whole:
                    yield line + b"\n"

    async def seek(self, row: int) -> int:
        """Where a line begins that is not after the row's, and not long before it."""
        low, high = 0, self._file.bytes
        while row and high - low > _NEAR_BYTES:
            middle = (low + high) // 2
            found = await self._first_line_after(middle, high)
            if found is None or found.row >= row:
                high = middle
            else:
                low = found.start
        return low

    async def _first_line_after(self, place: int, end: int) -> "_Place | None":
        """The first line that begins after `place`; None when none does before `end`."""
        window, width = b"", _LOOK_BYTES
        while True:
            window = await self.get(place, min(end, place + width))
            line_feed = window.find(b"\n")
            head = window[line_feed + 1 :]
            if line_feed >= 0 and len(head) >= _HEAD_BYTES:
                return _Place(place + line_feed + 1, ids.row_of_result(head))
            if place + width >= end:
                return None
            width *= 4


class _Place(NamedTuple):
    start: int
    row: int


#: Of a result line: as many as its id needs.
_HEAD_BYTES = 64


class _Response(msgspec.Struct):
    response: msgspec.Raw


def has_run(line: bytes) -> bool:
    """Whether the row of an error file's line was run: the others have no response."""
    return bytes(msgspec.json.decode(line, type=_Response).response) != b"null"


async def _own(output: ResultFile, piece: PlannedSlice, start: int, end: int) -> list[bytes]:
    """The slice's lines in the output file, out of those of its stretch."""
    if not piece.slice.mask:
        return _split(await output.get(start, end))
    numbers = frozenset(piece.slice.row_numbers)
    async with aclosing(output.lines(start, end)) as lines:
        return [line async for line in lines if ids.row_of_result(line) in numbers]


async def _ran(error: ResultFile, piece: PlannedSlice) -> list[bytes]:
    """The slice's lines in the error file of rows that were run."""
    found = []
    numbers = piece.slice.row_numbers
    first, last = numbers[0], numbers[-1]
    async with aclosing(error.lines(await error.seek(first))) as lines:
        async for line in lines:
            row = ids.row_of_result(line)
            if row > last:
                break
            if row in numbers and has_run(line):
                found.append(line)
    return found


async def _not_run(error: ResultFile, start: int, end: int) -> AsyncIterator[bytes]:
    """Of the lines of rows that were not run, those from number `start` to `end`."""
    number = 0
    async with aclosing(error.lines(0)) as lines:
        async for line in lines:
            if has_run(line):
                continue
            if number >= end:
                return
            if number >= start:
                yield line
            number += 1


def _split(body: bytes) -> list[bytes]:
    return [line + b"\n" for line in body.split(b"\n") if line]
