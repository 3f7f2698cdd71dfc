"""The rows that are asked: how they are sent, and how the answers' columns stand beside them."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

from shared.errors import InvalidInputError

_SHOWN = 3


class Rows(Protocol):
    """Rows of one kind of table."""

    #: How many there are, and their columns as far as the kind knows them.
    count: int
    names: Sequence[str]
    #: In which the gateway writes the answers.
    answers_format: Literal["jsonl", "parquet"]

    def file(self, folder: Path) -> Path:
        """A file with the rows, which is made in the folder if there is none."""
        ...

    def joined(self, answers: Sequence[Path]) -> tuple[Any, int]:
        """The table with the columns of these files beside its own, and how many rows they have."""
        ...


class Records:
    """Dictionaries, one for each row. Needs no library."""

    answers_format: Literal["jsonl", "parquet"] = "jsonl"

    def __init__(self, rows: Sequence[Mapping[str, Any]], path: Path | None = None) -> None:
        """The rows, and the file that has them."""
        self._rows = rows
        self._path = path
        self.count = len(rows)
        self.names: Sequence[str] = list(dict.fromkeys(name for row in rows for name in row))

    def file(self, folder: Path) -> Path:
        if self._path is not None:
            return self._path
        path = folder / "rows.jsonl"
        with path.open("w", encoding="utf-8") as file:
            for number, row in enumerate(self._rows):
                file.write(f"{_line(row, number)}\n")
        return path

    def joined(self, answers: Sequence[Path]) -> tuple[Any, int]:
        lines = b"".join(path.read_bytes() for path in answers).splitlines()
        made = [json.loads(line) for line in lines]
        return [{**row, **answer} for row, answer in zip(self._rows, made, strict=False)], len(made)


def records_in(path: Path) -> Records:
    """The objects of a file of JSON Lines. Raises InvalidInputError."""
    rows = []
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as error:
                raise InvalidInputError(f"{path}: line {number} is no JSON.") from error
            if not isinstance(row, dict):
                raise InvalidInputError(f"{path}: line {number} is no JSON object.")
            rows.append(row)
    return Records(rows, path)


def rows_of(data: object) -> Rows:
    """The rows of a table, of a list of dictionaries, or of the file at a path.

    Raises InvalidInputError.
    """
    kind = type(data)
    match kind.__module__.partition(".")[0], kind.__name__:
        case "pandas", "DataFrame":
            from batchyard.frames import of_pandas

            return of_pandas(data)
        case "polars", "DataFrame":
            from batchyard.frames import of_polars

            return of_polars(data)
        case "pyarrow", "Table":
            from batchyard.frames import of_arrow

            return of_arrow(data)
        case _:
            return _of_python(data)


def _of_python(data: object) -> Rows:
    if isinstance(data, str | Path):
        return _in_file(Path(data))
    if isinstance(data, Sequence) and all(isinstance(row, Mapping) for row in data):
        return Records(data)
    raise InvalidInputError(
        f"Rows are a table of pandas, Polars or Arrow, a list of dictionaries, or a path, and not "
        f"'{type(data).__name__}'. A lazy table is collected first."
    )


def _in_file(path: Path) -> Rows:
    if not path.is_file():
        raise InvalidInputError(f"{path}: there is no such file.")
    match path.suffix.lower():
        case ".jsonl" | ".ndjson":
            return records_in(path)
        case ".parquet" | ".pq" | ".arrow" | ".feather" | ".csv":
            from batchyard.frames import of_file

            return of_file(path)
        case _:
            raise InvalidInputError(
                f"{path}: the name ends in none of .parquet .arrow .csv .jsonl."
            )


def require_free(names: Sequence[str], new: Sequence[str]) -> None:
    """Raises InvalidInputError if the table has one of the new columns already."""
    if taken := [name for name in new if name in set(names)]:
        shown = ", ".join(f"'{name}'" for name in taken[:_SHOWN])
        raise InvalidInputError(f"The rows have {shown} already. Use prefix='…' for the answers.")


def _line(row: Mapping[str, Any], number: int) -> str:
    try:
        return json.dumps(row, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InvalidInputError(f"Row {number} has a value that is no JSON.") from error
