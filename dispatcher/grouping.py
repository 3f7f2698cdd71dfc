"""Puts the rows of a span in groups that begin alike, if an engine gains from it.

The lines of each slice then stand together in a copy of the span, so that a slice is still read
by one call. The copy is in S3 before any plan names it. A span with bad lines always has a copy,
with errors in their place. One with rows that were answered before has a copy with their
answers; if it cannot be written, they run again.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Sequence

import structlog

from dispatcher.cutter import Cutter
from dispatcher.input_reader import read_input
from dispatcher.row_span import RowSpan
from shared import crash
from shared.checksums import checksum
from shared.errors import NotFoundError, TransientError
from shared.ledger.copies import reserve_copies, write_copy
from shared.slices import Slice, with_answers, with_errors
from shared.state import BatchRecord, State
from shared.storage import Storage

log = structlog.get_logger()

#: Spans that are held in memory at a time.
_SPANS = 2
#: A span waits this long for others, and for its bytes. Then it keeps its order.
_PATIENCE_SECONDS = 20.0


class Grouping:
    """Cuts spans. A span that needs no copy keeps its order when S3 or time fail it."""

    def __init__(self, state: State, storage: Storage) -> None:
        self._state = state
        self._storage = storage
        self._spans = asyncio.Semaphore(_SPANS)

    async def cut(
        self, record: BatchRecord, cutter: Cutter, span: RowSpan, *, copy: str
    ) -> list[Slice]:
        """The slices that the span completes. `copy` is a new name.

        Of a span with bad lines, raises NotFoundError and TransientError.
        """
        if span.has_bad_lines:
            async with self._spans:
                slices = await self._cut_in_groups(record, cutter, span, copy=with_errors(copy))
            assert slices is not None  # noqa: S101  # it needs a copy
            return slices
        if span.repeats or span.has_known_rows:
            name = with_answers(copy) if span.has_known_rows else copy
            try:
                async with asyncio.timeout(_PATIENCE_SECONDS), self._spans:
                    slices = await self._cut_in_groups(record, cutter, span, copy=name)
            except (NotFoundError, TransientError, TimeoutError) as error:
                log.warning("span.not_grouped", batch_id=record.id, reason=repr(error))
                slices = None
            if slices is not None:
                return slices
        return await asyncio.to_thread(cutter.cut, span)

    async def _cut_in_groups(
        self, record: BatchRecord, cutter: Cutter, span: RowSpan, *, copy: str
    ) -> list[Slice] | None:
        body = await read_input(self._storage, record, span.start, span.end)
        # Parsing would block the event loop for too long.
        order = await asyncio.to_thread(span.order, body)
        if order is None:
            return None
        slices = cutter.groups(span, order, copy=copy)
        slices = await asyncio.to_thread(_with_places, span, slices, body)
        await reserve_copies(
            self._state, record.id, expires_at=record.number("expires_at"), now=time.time()
        )
        await write_copy(self._storage, record.id, copy, _in_groups(span, slices, body))
        crash.point("planner.copied")
        return [*cutter.skip(span), *slices]


def _with_places(span: RowSpan, slices: Sequence[Slice], body: bytes) -> list[Slice]:
    found, end = [], 0
    for slice_, lines in zip(slices, _groups(span, slices, body), strict=True):
        # Errors are longer or shorter than the lines that they stand for.
        start, end = end, end + len(lines)
        place = slice_.copy and slice_.copy._replace(start=start, end=end, checksum=checksum(lines))
        found.append(slice_._replace(copy=place))
    return found


async def _in_groups(span: RowSpan, slices: Sequence[Slice], body: bytes) -> AsyncIterator[bytes]:
    """The lines of each slice after those of the one before."""
    for lines in _groups(span, slices, body):
        yield lines


def _groups(span: RowSpan, slices: Sequence[Slice], body: bytes) -> Iterator[bytes]:
    first_row = slices[0].first_row
    for slice_ in slices:
        positions = [number - first_row for number in slice_.row_numbers]
        yield b"".join(span.lines(body, positions))
