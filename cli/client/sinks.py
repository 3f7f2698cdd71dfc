"""Where results go: standard output, or a file that appears once it is whole."""

import fcntl
import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Self

from shared.errors import InvalidInputError

_CHUNK = 1024 * 1024


class PartFile:
    """A file that grows beside its final place, and survives the end of the command.

    `of` says of what it is a part, so that a part of something else is not continued. Inside of
    the context nobody else writes to it.
    """

    def __init__(self, path: Path, of: str) -> None:
        self._path = path
        self._part = path.with_name(f".{path.name}.{of}.part")

    def __enter__(self) -> Self:
        """Raise InvalidInputError if another command writes to it."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        while True:
            self.file: BinaryIO = self._part.open("a+b")
            try:
                fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                self.file.close()
                raise InvalidInputError(
                    f"{self._path}: another command is writing it. Wait for its end, or name "
                    "another file with --output."
                ) from error
            except OSError:
                # A file system without locks, as some of networks are.
                return self
            if self._is_there():
                return self
            # Its writer has just given it its name.
            self.file.close()

    def __exit__(self, *_: object) -> None:
        self.file.close()

    def _is_there(self) -> bool:
        with suppress(FileNotFoundError):
            return os.path.samestat(self._part.stat(), os.fstat(self.file.fileno()))
        return False

    def whole_lines(self) -> int:
        """How many whole lines it has from before; a line that was cut is dropped."""
        lines = end = place = 0
        self.file.seek(0)
        while chunk := self.file.read(_CHUNK):
            lines += chunk.count(b"\n")
            if (found := chunk.rfind(b"\n")) >= 0:
                end = place + found + 1
            place += len(chunk)
        self.file.truncate(end)
        return lines

    def size(self) -> int:
        """How many bytes it has from before."""
        return os.fstat(self.file.fileno()).st_size

    def begin_again(self) -> None:
        self.file.truncate(0)

    def finish(self) -> None:
        """Give it its name, once it is on the disk."""
        self.file.flush()
        os.fsync(self.file.fileno())
        self._part.replace(self._path)


def file_of(output: Path, name: str, *, only_failed: bool) -> Path:
    """The file that `output` is, or the one that these lines have in the folder that it is.

    Those of failed requests have one of their own, beside all lines.
    """
    end = ".failed.jsonl" if only_failed else ".jsonl"
    return output / f"{name}{end}" if output.is_dir() else output


def write(pieces: Iterable[bytes], file: BinaryIO | None = None) -> None:
    """Write all pieces to the file, or to standard output."""
    target = file or sys.stdout.buffer
    for piece in pieces:
        target.write(piece)
    target.flush()
