"""The output and error file of an ending batch: written to S3, or an existing part of the batch."""

import hashlib
from collections.abc import AsyncIterator
from typing import NamedTuple

from dispatcher.result_lines import ResultLines
from dispatcher.row_check import RowCheck
from dispatcher.unrun_rows import CLOSING_REASONS
from shared import crash, ids
from shared.errors import BrokenObjectError
from shared.ledger.commits import Assembled
from shared.lifecycle import Event
from shared.slices import Part
from shared.state import BatchRecord, State
from shared.storage import Storage
from shared.tasks import beside

#: S3 writes several parts of a file in little more time than one, and the batch waits for them.
_PARTS_AT_ONCE = 3


class Results(NamedTuple):
    """A batch's files; None for one that would be empty."""

    output: Assembled | None
    error: Assembled | None


class EarlyOutput(NamedTuple):
    """An output file that is there already, None if it would be empty, and the rows in it."""

    file: Assembled | None
    check: RowCheck


class ResultFiles:
    """Makes the files of batches whose parts are frozen, so every attempt gives the same bytes."""

    def __init__(self, state: State, storage: Storage) -> None:
        self._state = state
        self._storage = storage

    async def make(
        self,
        record: BatchRecord,
        event: Event,
        part: Part | None,
        *,
        early: EarlyOutput | None = None,
        has_names: bool = True,
    ) -> Results:
        """The files of a batch that ends by this event, or the `part` that is its file.

        An output file that was made `early` is not made again.

        Without names, the lines of rows that never ran have a `custom_id` of null. Raises
        InputLostError if the names cannot be read, BrokenObjectError or NotFoundError for a part
        that is not as it was committed, and IncompleteError unless the parts hold every row exactly
        once.
        """
        check = early.check if early else new_check(record)
        if part is not None:
            results = await self._adopt(record, part, check)
        else:
            closing = None if event is Event.OUTPUT_COMMITTED else CLOSING_REASONS[record.status]
            lines = ResultLines(self._state, self._storage, record, check)
            if early is not None:
                output = early.file
            else:
                output = await self.write_output(record, event, lines.output())
            crash.point("finaliser.output_written")
            errors = lines.errors(closing, has_names=has_names)
            # Without names the bytes differ, so they get another key.
            name = "error" if has_names else "error-without-names"
            error = await self._write(record, event, "error", errors, name=name)
            results = Results(output, error)
        check.finish(record.id)
        return results

    async def write_output(
        self, record: BatchRecord, event: Event, lines: AsyncIterator[bytes]
    ) -> Assembled | None:
        """Write the output file of these lines; None if there are none."""
        return await self._write(record, event, "output", lines)

    async def part_as_file(self, record: BatchRecord) -> Part | None:
        """The batch's only part, if it holds just what its output or error file would hold."""
        if record.number("slices_total") != 1:
            return None
        pages = self._state.slices.pages(record.id, record.fields["plan"])
        [[planned]] = [page async for page in pages]
        part = planned.part
        if (
            part is None
            or part.rows < planned.slice.rows
            or (part.output_bytes and part.error_bytes)
            # If it was claimed again, there may be another part, which has to be swept.
            or await self._state.slices.epochs(record.id) != {0: 1}
        ):
            return None
        return part

    async def _adopt(self, record: BatchRecord, part: Part, check: RowCheck) -> Results:
        """The part itself as the output or the error file: nothing is copied."""
        body = await self._storage.get(part.key, etag=part.etag)
        if not await beside(part.fits, body):
            raise BrokenObjectError(part.key, "it has other bytes than when it was committed")
        await beside(check.add_lines, body)
        kind = "output" if part.output_bytes else "error"
        file = Assembled(
            key=part.key,
            etag=part.etag,
            size=len(body),
            sha256=(await beside(hashlib.sha256, body)).hexdigest(),
            rows=part.rows,
            file_id=ids.output_file_id(record.id, kind),
        )
        return Results(file, None) if part.output_bytes else Results(None, file)

    async def _write(
        self,
        record: BatchRecord,
        event: Event,
        kind: str,
        chunks: AsyncIterator[bytes],
        *,
        name: str | None = None,
    ) -> Assembled | None:
        """Stream the chunks into the batch's output or error object; None if there are none."""
        first = await _first_of(chunks)
        if not first:
            return None
        digest, rows = hashlib.sha256(), 0

        def count(chunk: bytes) -> int:
            digest.update(chunk)
            return chunk.count(b"\n")

        async def counted() -> AsyncIterator[bytes]:
            nonlocal first, rows
            chunk, first = first, b""
            while True:
                rows += await beside(count, chunk)
                yield chunk
                try:
                    chunk = await anext(chunks)
                except StopAsyncIteration:
                    return

        # The event is in the key: a finaliser that was frozen while it wrote an expiry must not
        # overwrite the files of the cancellation that came first.
        key = f"batches/{record.id}/{event}/{name or kind}.jsonl"
        stored = await self._storage.upload(key, counted(), parts_at_once=_PARTS_AT_ONCE)
        return Assembled(
            key=stored.key,
            etag=stored.etag,
            size=stored.size,
            sha256=digest.hexdigest(),
            rows=rows,
            file_id=ids.output_file_id(record.id, kind),
        )


def new_check(record: BatchRecord) -> RowCheck:
    """A check of the rows of this batch, of which there are none without a plan."""
    return RowCheck(record.number("total") if "plan" in record.fields else 0)


async def _first_of(chunks: AsyncIterator[bytes]) -> bytes:
    """The first chunk that is not empty; nothing if there is none."""
    async for chunk in chunks:
        if chunk:
            return chunk
    return b""
