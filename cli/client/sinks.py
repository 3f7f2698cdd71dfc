"""Where results go: standard output, or a file that appears once it is whole."""

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

_CHUNK = 1024 * 1024


class PartFile:
    """A file that grows beside its final place, and survives the end of the command.

    `of` says of what it is a part, so that a part of something else is not continued.
    """

    def __init__(self, path: Path, of: str) -> None:
        self._path = path
        self._part = path.with_name(f".{path.name}.{of}.part")

    def whole_lines(self) -> int:
        """How many whole lines it has from before; a line that was cut is dropped."""
        lines = end = place = 0
        if self._part.exists():
            with self._part.open("rb") as file:
                while chunk := file.read(_CHUNK):
                    lines += chunk.count(b"\n")
                    if (found := chunk.rfind(b"\n")) >= 0:
                        end = place + found + 1
                    place += len(chunk)
            os.truncate(self._part, end)
        return lines

    def size(self) -> int:
        """How many bytes it has from before."""
        return self._part.stat().st_size if self._part.exists() else 0

    def open(self) -> BinaryIO:
        """To write on where it ends."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        return self._part.open("ab")

    def begin_again(self) -> None:
        self._part.unlink(missing_ok=True)

    def finish(self) -> None:
        """Give it its name, once it is on the disk."""
        with self._part.open("ab") as file:
            os.fsync(file.fileno())
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
