"""A batch's output or error file, read by rows."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import NamedTuple

import msgspec

from shared import ids
from shared.errors import BrokenObjectError
from shared.state import FileRecord
from shared.storage import ChangedError, Storage

#: A search for a row stops within this many bytes of its place, and reads this much at a time.
_NEAR_BYTES = 128 * 1024
_PROBE_BYTES = 16 * 1024
#: Enough of a result line to hold its id.
_HEAD_BYTES = 64


class ResultFile:
    """An output or error file: result lines in the order of their rows."""

    def __init__(self, storage: Storage, file: FileRecord) -> None:
        self._storage = storage
        self._file = file

    async def get(self, start: int, end: int) -> bytes:
        """The bytes [start, end)."""
        file = self._file
        try:
            return await self._storage.get(
                file.key, start=start, end=end, etag=file.etag, bucket=file.bucket
            )
        except ChangedError as error:
            raise BrokenObjectError(file.key, "it was replaced since it was stored") from error

    async def lines(self, start: int, end: int | None = None) -> AsyncGenerator[bytes, None]:
        """The lines in bytes [start, end), or up to the file's end. A line begins at `start`."""
        file, rest = self._file, b""
        end = file.bytes if end is None else end
        stream = self._storage.stream(
            file.key, start=start, end=end, etag=file.etag, bucket=file.bucket
        )
        try:
            async with aclosing(stream) as chunks:
                async for chunk in chunks:
                    *whole, rest = (rest + chunk).split(b"\n")
                    for line in whole:
                        yield line + b"\n"
        except ChangedError as error:
            raise BrokenObjectError(file.key, "it was replaced since it was stored") from error

    async def seek(self, row: int) -> int:
        """The offset of a line at, or shortly before, the row's line."""
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
        """The first line that begins after `place`; None if none does before `end`."""
        window, width = b"", _PROBE_BYTES
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


class _Error(msgspec.Struct):
    line: int | None = None


class _ErrorLine(msgspec.Struct):
    response: msgspec.Raw
    error: _Error | None = None


def has_run(line: bytes) -> bool:
    """Whether the row of an error line was run, and so came with a part. Then it has a response.

    So did a bad line, for which nothing had to run.
    """
    found = msgspec.json.decode(line, type=_ErrorLine)
    return bytes(found.response) != b"null" or not _can_run(found)


def can_run(line: bytes) -> bool:
    """Whether the row of an error line is a request; a bad line is named by its number."""
    return _can_run(msgspec.json.decode(line, type=_ErrorLine))


def _can_run(found: _ErrorLine) -> bool:
    return found.error is None or found.error.line is None
