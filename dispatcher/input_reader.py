"""Reads parts of a batch's input that follow each other with few calls to S3."""

import asyncio
from typing import NamedTuple

from shared.ledger.copies import copy_key
from shared.state import BatchRecord
from shared.storage import Storage

#: Read at once of parts that follow each other.
_BYTES_AT_ONCE = 1024 * 1024


class _Stretch(NamedTuple):
    start: int
    end: int
    body: asyncio.Future[bytes]


class InputReader:
    """Holds one stretch of the input, and those for which somebody waits."""

    def __init__(self, storage: Storage, record: BatchRecord, *, copy: str = "") -> None:
        """`copy` is the name of a copy that is read instead of the input itself."""
        self._storage = storage
        self._record = record
        self._copy = copy
        self._held: _Stretch | None = None
        #: Where the part ended that was asked for last.
        self._last_end: int | None = None

    async def get(self, start: int, end: int) -> bytes:
        """Bytes [start, end) of the input's object. Raises NotFoundError or ChangedError."""
        held = self._held
        if held is None or start < held.start or end > held.end:
            held = self._held = self._read(start, end)
        self._last_end = end
        # Others may wait for the same stretch when one of them is cancelled.
        body = await asyncio.shield(held.body)
        return body[start - held.start : end - held.start]

    def _read(self, start: int, end: int) -> _Stretch:
        if start == self._last_end:
            # Nobody asks for bytes beyond the end of a copy.
            most = start + _BYTES_AT_ONCE if self._copy else self._record.input_range[1]
            end = max(end, min(most or end, start + _BYTES_AT_ONCE))
        return _Stretch(start, end, asyncio.ensure_future(self._fetch(start, end)))

    async def _fetch(self, start: int, end: int) -> bytes:
        if self._copy:
            key = copy_key(self._record.id, self._copy)
            return await self._storage.get(key, start=start, end=end)
        return await read_input(self._storage, self._record, start, end)


async def read_input(storage: Storage, record: BatchRecord, start: int, end: int) -> bytes:
    """Bytes [start, end) of the input's object. Raises NotFoundError or ChangedError."""
    fields = record.fields
    return await storage.get(
        fields["key"],
        start=start,
        end=end,
        etag=fields["etag"],
        bucket=fields["bucket"],
        version_id=fields.get("version_id"),
    )
