"""What a child process has of the world: two pipes to its parent, which reads objects for it."""

import io
import os
import resource
from typing import BinaryIO, Protocol, TypeVar

import msgspec

from shared.dataset.frames import HEADER_BYTES, Kind, Read, encoded, header

_READ_BYTES = 8 * 1024 * 1024
_OPEN_FILES = 16


class _Bounded(Protocol):
    @property
    def memory_bytes(self) -> int: ...


_Job = TypeVar("_Job", bound=_Bounded)


class Pipes:
    """The two pipes to the parent."""

    def __init__(self, given: BinaryIO, taken: BinaryIO) -> None:
        self._given = given
        self._taken = taken

    def receive(self, wanted: Kind) -> bytes:
        """The next frame's body. Raises EOFError if the parent is gone."""
        head = self._given.read(HEADER_BYTES)
        if len(head) < HEADER_BYTES:
            raise EOFError
        kind, length = header(head)
        body = self._given.read(length)
        if kind is not wanted or len(body) < length:
            raise EOFError
        return body

    def send(self, frame: bytes) -> None:
        """Say something to the parent."""
        self._taken.write(frame)
        self._taken.flush()


def begin(pipes: Pipes, type_: type[_Job]) -> _Job:
    """The job that the parent sends; from then on, this process has no more than it needs.

    Raises EOFError if the parent is gone.
    """
    job = msgspec.json.decode(pipes.receive(Kind.JOB), type=type_)
    resource.setrlimit(resource.RLIMIT_AS, (job.memory_bytes, job.memory_bytes))
    resource.setrlimit(resource.RLIMIT_NOFILE, (_OPEN_FILES, _OPEN_FILES))
    os.nice(5)
    return job


class RemoteFile(io.RawIOBase):
    """An object that the parent reads for us, in pieces of some size."""

    def __init__(self, pipes: Pipes, number: int, size: int) -> None:
        self._pipes = pipes
        self._number = number
        self._size = size
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def readall(self) -> bytes:
        return self.read(-1)

    def read(self, size: int | None = -1) -> bytes:
        end = self._size if size is None or size < 0 else min(self._at + size, self._size)
        pieces = []
        while self._at < end:
            piece_end = min(end, self._at + _READ_BYTES)
            self._pipes.send(encoded(Kind.READ, Read(self._number, self._at, piece_end)))
            piece = self._pipes.receive(Kind.BYTES)
            if len(piece) != piece_end - self._at:
                raise EOFError
            pieces.append(piece)
            self._at = piece_end
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def readinto(self, buffer: bytearray) -> int:  # type: ignore[override]  # any writable buffer
        piece = self.read(len(buffer))
        buffer[: len(piece)] = piece
        return len(piece)
