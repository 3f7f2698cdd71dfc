"""The record of a dead row, which was given up because it killed engines. Pure.

It contains no request and no answer, only where the request is stored.
"""

import msgspec


class DeadRow(msgspec.Struct, frozen=True, kw_only=True):
    """A dead row. Its request is number `place` (from 0) in bytes [start, end) of the object."""

    #: The id in its error line.
    id: str
    batch_id: str
    tenant: str
    lane: str
    #: Its line in the input file, from 1, not counting blank lines.
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
        """The row as stored in Redis."""
        return msgspec.json.encode(self).decode()


def to_dead_row(text: str) -> DeadRow:
    """Decode a row as stored in Redis."""
    return msgspec.json.decode(text, type=DeadRow)
