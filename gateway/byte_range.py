"""The part of a file that a client asks for by `Range`. Pure."""

import re
from typing import NamedTuple

_RANGE = re.compile(r"\s*bytes\s*=\s*(\d{0,18})\s*-\s*(\d{0,18})\s*", re.ASCII)


class ByteRange(NamedTuple):
    """Bytes [start, end) of a file of `size` bytes."""

    start: int
    end: int
    size: int

    @property
    def content_range(self) -> str:
        """The header of the answer; its last byte is inclusive."""
        return f"bytes {self.start}-{self.end - 1}/{self.size}"


def asked_range(header: str | None, size: int) -> ByteRange | None:
    """The range that the header asks for; None for the whole file.

    A range that the file does not have, several ranges, and what is no range get the whole file, as
    RFC 9110 allows.
    """
    found = _RANGE.fullmatch(header or "")
    if found is None or found[1] == found[2] == "":
        return None
    if found[1] == "":
        start, end = max(0, size - int(found[2])), size
    else:
        start = int(found[1])
        end = size if found[2] == "" else min(size, int(found[2]) + 1)
    return ByteRange(start, end, size) if start < end else None
