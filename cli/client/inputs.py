"""Input files as a command names them: their paths, their endpoint, and a digest of each."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from shared.errors import InvalidInputError
from shared.input.request_lines import BYTE_ORDER_MARK

_SUFFIX = ".jsonl"
#: Longer than any line that a gateway accepts.
_MAX_LINE_BYTES = 16 * 1024 * 1024 + 1
_MAX_BLANK_LINES = 1000


def input_files(names: Sequence[Path]) -> list[Path]:
    """The files that are named: folders stand for the .jsonl files in them, `*` for any text.

    Raises InvalidInputError where there is nothing.
    """
    found = [file for name in names for file in _files(name)]
    return list(dict.fromkeys(found))


def digest_of(path: Path) -> str:
    """SHA-256 of the file's bytes, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def endpoint_of(path: Path) -> str:
    """The `url` of the file's first request. Raises InvalidInputError if there is none."""
    try:
        url = json.loads(_first_line(path))["url"]
    except (ValueError, KeyError, TypeError, RecursionError):
        url = None
    if not isinstance(url, str):
        raise InvalidInputError(
            f"{path}: the first line is not a request with a 'url'. Run `batchyard check {path}` "
            "to see all problems, or name the endpoint: --endpoint /v1/chat/completions"
        )
    return url


def _files(name: Path) -> list[Path]:
    if name.is_dir():
        found = sorted(file for file in name.iterdir() if file.suffix.lower() == _SUFFIX)
        if not found:
            raise InvalidInputError(f"{name}: there is no {_SUFFIX} file in this folder.")
        return found
    if name.is_file():
        return [name]
    # A shell that finds nothing hands the pattern on, and one may be quoted.
    root = Path(name.anchor)
    pattern = str(name.relative_to(root)) if name.anchor else str(name)
    if "*" in pattern and (found := sorted(file for file in root.glob(pattern) if file.is_file())):
        return found
    raise InvalidInputError(f"{name}: there is no such file.")


def _first_line(path: Path) -> bytes:
    with path.open("rb") as file:
        for number in range(_MAX_BLANK_LINES):
            line = file.readline(_MAX_LINE_BYTES)
            if not number:
                line = line.removeprefix(BYTE_ORDER_MARK)
            if line.strip():
                return line
            if not line:
                break
    return b""
