"""Merges the result lines of several objects in row order, in bounded memory."""

import asyncio
import heapq
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from contextlib import AsyncExitStack, aclosing

from shared import ids
from shared.checksums import Checksum
from shared.errors import BrokenObjectError
from shared.slices import PlannedSlice, Section
from shared.storage import Storage

#: Read from each object at a time. No more is kept of it, except for a longer line.
_STEP_BYTES = 256 * 1024
#: Lines are passed on together once they have this many bytes.
_CHUNK_BYTES = 64 * 1024


async def read_lines(storage: Storage, key: str, section: Section) -> AsyncGenerator[bytes, None]:
    """The lines of a part's section, each with its line feed.

    Raises BrokenObjectError, perhaps after some lines, if they are not what was committed.
    """
    rest, found = b"", Checksum()
    for place in range(section.start, section.end, _STEP_BYTES):
        chunk = await storage.get(key, start=place, end=min(section.end, place + _STEP_BYTES))
        found.add(chunk)
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            if not ids.is_result(line):
                raise BrokenObjectError(key, "it has a line that is no result")
            yield line + b"\n"
    is_same = section.checksum in ("", found.text)
    if rest or found.size != section.end - section.start or not is_same:
        raise BrokenObjectError(key, "it has other bytes than when it was committed")


async def stretches(
    planned: AsyncIterator[PlannedSlice],
) -> AsyncGenerator[list[PlannedSlice], None]:
    """Group a batch's slices, given in order, by their stretch of rows. Most stretches have one."""
    stretch: list[PlannedSlice] = []
    async for one in planned:
        if stretch and one.slice.first_row != stretch[0].slice.first_row:
            yield stretch
            stretch = []
        stretch.append(one)
    if stretch:
        yield stretch


async def as_stream(lines: Iterable[bytes]) -> AsyncGenerator[bytes, None]:
    """Lines in memory as a stream, to be merged with others."""
    for line in lines:
        yield line


async def merged(streams: Sequence[AsyncGenerator[bytes, None]]) -> AsyncGenerator[bytes, None]:
    """Merge result lines in row order. Each stream must be in that order.

    Holds one line of each stream in memory. Closes all streams at the end.
    """
    async with AsyncExitStack() as stack:
        for stream in streams:
            await stack.enter_async_context(aclosing(stream))
        # A stream cannot be closed while it runs, so all must have answered, even if one fails.
        firsts = await asyncio.gather(
            *(anext(stream, b"") for stream in streams), return_exceptions=True
        )
        heads = []
        for number, line in enumerate(firsts):
            if isinstance(line, BaseException):
                raise line
            if line:
                heads.append((ids.row_of_result(line), number, line))
        heapq.heapify(heads)
        while heads:
            _, number, line = heads[0]
            yield line
            if following := await anext(streams[number], b""):
                heapq.heapreplace(heads, (ids.row_of_result(following), number, following))
            else:
                heapq.heappop(heads)


async def chunked(lines: AsyncGenerator[bytes, None]) -> AsyncGenerator[list[bytes], None]:
    """The same lines in chunks that are worth a call."""
    gathered: list[bytes] = []
    size = 0
    async with aclosing(lines):
        async for line in lines:
            gathered.append(line)
            size += len(line)
            if size >= _CHUNK_BYTES:
                yield gathered
                gathered, size = [], 0
    if gathered:
        yield gathered
