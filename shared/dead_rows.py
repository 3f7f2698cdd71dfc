"""Rows that were given up because engines died of them: what is kept of one. Pure.

It holds no request and no answer, only where the request is stored.
"""

import msgspec


class DeadRow(msgspec.Struct, frozen=True, kw_only=True):
    """One row. Its request is number `place` (from 0) in the bytes [start, end) of the object."""

    #: As its error line has it.
    id: str
    batch_id: str
    tenant: str
    lane: str
    #: Of the input file, from 1; blank ones are not counted.
    line: int
    custom_id: str
    #: How many engines died with it.
    deaths: int
    reason: str
    #: Unix seconds.
    at: int
    bucket: str
    key: str
    etag: str
    start: int
    end: int
    place: int
    version_id: str = ""

    def to_text(self) -> str:
        """As Redis keeps it."""
        return msgspec.json.encode(self).decode()


def to_dead_row(text: str) -> DeadRow:
    """A row as Redis keeps it."""
    return msgspec.json.decode(text, type=DeadRow)
