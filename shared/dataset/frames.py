"""What the fleet says to processes that handle tenants' data, and they to it, on two pipes. Pure.

A frame is a kind of one byte, its length in four bytes, and that many bytes.
"""

from enum import Enum
from typing import Any

import msgspec

from shared.dataset.dataset import PinnedDataset

#: Larger than any answer: a child that sends more is broken.
MAX_FRAME = 64 * 1024 * 1024
HEADER_BYTES = 5


class Kind(bytes, Enum):
    """What a frame holds."""

    #: To the child: what it is to do, and bytes that it asked for.
    JOB = b"J"
    BYTES = b"B"
    #: From it: a request for bytes, something that is wrong, and its last word.
    READ = b"R"
    PROBLEM = b"P"
    DONE = b"D"
    #: From a renderer: lines, and what their rows carry along.
    LINES = b"L"
    CARRIED = b"C"
    #: From a writer of tables: bytes of a file, and that the file is whole.
    FILE = b"F"
    FILE_END = b"E"


class Job(msgspec.Struct, frozen=True):
    """Render this dataset as requests to `endpoint`, at most so many rows and problems."""

    pinned: PinnedDataset
    endpoint: str
    max_rows: int
    max_problems: int = 1000
    row_seconds: float = 2.0
    memory_bytes: int = 3 * 1024**3


class Read(msgspec.Struct, frozen=True):
    """Bytes [start, end) of source number `source`, counted from the source's start."""

    source: int
    start: int
    end: int


class Problem(msgspec.Struct, frozen=True):
    """Why a row, or the dataset if `row` is None, cannot be rendered. Rows count from 1."""

    code: str
    message: str
    param: str
    row: int | None = None


class Done(msgspec.Struct, frozen=True):
    """The end: rows that were looked at, rows that became lines, and all problems."""

    read: int
    rows: int
    problems: int


def frame(kind: Kind, body: bytes) -> bytes:
    """The frame's bytes."""
    return kind.value + len(body).to_bytes(4) + body


def encoded(kind: Kind, value: Any) -> bytes:
    """The frame that holds the value as JSON."""
    return frame(kind, msgspec.json.encode(value))


def header(head: bytes) -> tuple[Kind, int]:
    """The kind and the length that a header says. Raises ValueError."""
    kind, length = Kind(head[:1]), int.from_bytes(head[1:])
    if length > MAX_FRAME:
        raise ValueError(f"a frame of {length} bytes")
    return kind, length
