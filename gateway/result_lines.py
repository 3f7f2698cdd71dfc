"""The result lines of a batch in one order from first to last, before its end as after it.

Before the end they come from the parts, afterwards from the output and error file: the same lines
at the same places, so a reader may stop anywhere and continue from there later.
"""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Literal

from gateway.batch_slices import BatchSlices
from gateway.file_store import live_file
from gateway.result_file import ResultFile, has_run
from shared import ids
from shared.errors import BrokenObjectError, InvalidInputError, NotFoundError, TransientError
from shared.ledger.merging import chunked, merged, read_lines
from shared.ledger.parts import drop_part, index_of, read_section
from shared.lifecycle import Status
from shared.slices import PlannedSlice
from shared.state import BatchRecord, State
from shared.storage import Storage

Order = Literal["input", "completion"]

#: Of the output file, by one reader.
_MAX_REMEMBERED_BYTES = 16 * 1024 * 1024
_HAVE_FILES = (Status.COMPLETED, Status.EXPIRED, Status.CANCELLED)


class ResultLines:
    """A batch's results, one line per row, by their places from 0 on.

    In input order a line's place is its row, and the lines before the first row without a result
    can be read. In the order of completion slices follow each other as they were committed; rows
    that never ran come last, once the batch has ended.
    """

    def __init__(self, state: State, storage: Storage, batch: BatchRecord, order: Order) -> None:
        self._state = state
        self._storage = storage
        self._batch = batch
        self._order = order
        self._slices = BatchSlices(state, batch)

    async def end(self, start: int) -> int:
        """The place after the last line that can be read now, reading from `start`.

        Raises InvalidInputError if the order of completion is no longer known.
        """
        if "plan" not in self._batch.fields:
            return start
        if self._batch.status in _HAVE_FILES:
            if self._order == "completion":
                await self._require_order()
            return self._batch.number("total")
        if self._order == "completion":
            done = self._batch.number("completed") + self._batch.number("failed")
            # Results that were damaged, and will be made again, are at this place.
            gap = self._batch.fields.get("gap_from")
            return max(start, done if gap is None else int(gap))
        end = start
        async for stretch in self._slices.stretches_from(start):
            lacking = [
                row
                for slice_ in stretch
                if slice_.part is None or slice_.part.rows < slice_.slice.rows
                for row in slice_.slice.row_numbers
                if row >= start
            ]
            if lacking:
                return max(end, min(lacking))
            end = stretch[0].slice.first_row + sum(slice_.slice.rows for slice_ in stretch)
        return end

    async def read(self, start: int, end: int) -> AsyncGenerator[bytes, None]:
        """The lines of places [start, end), several at a time.

        Raises NotFoundError if the files are gone, TransientError if damaged results are made
        again, and BrokenObjectError if they cannot be.
        """
        place = start
        if self._batch.status not in _HAVE_FILES:
            try:
                async with aclosing(chunked(self._from_parts(start, end))) as chunks:
                    async for chunk in chunks:
                        place += len(chunk)
                        yield b"".join(chunk)
            except BrokenObjectError as error:
                await self._take_back(error)
                raise TransientError("Damaged results are made again. Try again later.") from error
            except NotFoundError:
                # The batch has ended in the meantime, and its parts were removed.
                self._batch = await self._state.batches.get(self._batch.id)
                self._slices = BatchSlices(self._state, self._batch)
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
            async for stretch in self._slices.stretches_from(start):
                if stretch[0].slice.first_row >= end:
                    return
                async with aclosing(self._lines_of_stretch(stretch)) as lines:
                    async for line in lines:
                        if start <= ids.row_of_result(line) < end:
                            yield line
            return
        async for slice_, before in self._slices.commits_from(start, end):
            for line in (await self._lines_of_part(slice_))[max(0, start - before) : end - before]:
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
        starts, ends = await self._slices.output_places()
        own = _OwnLines()
        async for slice_, before in self._slices.commits_from(start, end):
            lines: list[bytes] = []
            if output is not None:
                lines += await own.of(output, slice_, starts[slice_.index], ends[slice_.index])
            if error is not None and slice_.part is not None and slice_.part.error_bytes:
                lines += await _ran(error, slice_)
            lines.sort(key=ids.row_of_result)
            for line in lines[max(0, start - before) : end - before]:
                yield line
        run = await self._slices.committed_rows()
        if error is not None and end > run:
            async for line in _not_run(error, max(0, start - run), end - run):
                yield line

    async def _lines_of_stretch(self, stretch: list[PlannedSlice]) -> AsyncGenerator[bytes, None]:
        """The lines of the stretch's parts in input order. Several parts are merged as streams."""
        if len(stretch) == 1:
            for line in await self._lines_of_part(stretch[0]):
                yield line
            return
        parts = [slice_.part for slice_ in stretch if slice_.part is not None]
        sections = [(part.key, section) for part in parts for section in (part.output, part.error)]
        streams = [read_lines(self._storage, *section) for section in sections]
        async with aclosing(merged(streams)) as lines:
            async for line in lines:
                yield line

    async def _lines_of_part(self, slice_: PlannedSlice) -> list[bytes]:
        """The part's lines in input order."""
        if slice_.part is None:
            return []
        part = slice_.part
        body = await read_section(self._storage, part, part.output)
        body += await read_section(self._storage, part, part.error) if part.error_bytes else b""
        return sorted(_split(body), key=ids.row_of_result)

    async def _take_back(self, error: BrokenObjectError) -> None:
        """Let the rows of a broken part run again. Raises the error if its batch has ended."""
        async for slice_ in self._slices.at([index_of(error.key)]):
            part = slice_.part
            if part is None or part.key != error.key:
                return
            outcome = await drop_part(
                self._state, self._storage, self._batch.id, slice_.index, part
            )
            if outcome == "changed":
                raise error

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
        """Raise InvalidInputError if Redis, which alone knows the order, has forgotten it."""
        if self._batch.number("total") == 0 or await self._slices.are_known():
            return
        raise InvalidInputError(
            f"Invalid 'order': the order of completion of batch '{self._batch.id}' was kept for a "
            "day after its end and is gone. Use order=input from offset 0, or download the output "
            "and the error file.",
            param="order",
            code="order_expired",
        )


class _OwnLines:
    """Finds the lines of slices in the output file. Remembers a stretch that is not too large.

    Slices of one stretch are mostly committed after each other, and a stretch may have dozens.
    """

    def __init__(self) -> None:
        self._start = -1
        self._lines: dict[int, bytes] = {}

    async def of(
        self, output: ResultFile, slice_: PlannedSlice, start: int, end: int
    ) -> list[bytes]:
        """The slice's lines, where those of its stretch are at [start, end)."""
        if not slice_.slice.mask:
            return _split(await output.get(start, end))
        numbers = slice_.slice.row_numbers
        if end - start > _MAX_REMEMBERED_BYTES:
            wanted = frozenset(numbers)
            async with aclosing(output.lines(start, end)) as lines:
                return [line async for line in lines if ids.row_of_result(line) in wanted]
        if self._start != start:
            found = _split(await output.get(start, end))
            self._start, self._lines = start, {ids.row_of_result(line): line for line in found}
        return [self._lines[row] for row in numbers if row in self._lines]


async def _ran(error: ResultFile, slice_: PlannedSlice) -> list[bytes]:
    """The slice's lines in the error file, without the rows that were not run."""
    found = []
    numbers = slice_.slice.row_numbers
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
    """The lines of rows that were not run, from the one numbered `start` to before `end`."""
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
