"""The rows that are asked: how they are sent, and how the answers' columns stand beside them."""

import json
from collections.abc import Iterator, Mapping, Sequence
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

    def failed(self, answers: Sequence[Path], column: str) -> int:
        """How many rows of these files have something in the column."""
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
        with path.open("wb") as file:
            for number, row in enumerate(self._rows):
                file.write(_line(row, number) + b"\n")
        return path

    def joined(self, answers: Sequence[Path]) -> tuple[Any, int]:
        made = list(_objects(answers))
        return [{**row, **answer} for row, answer in zip(self._rows, made, strict=False)], len(made)

    def failed(self, answers: Sequence[Path], column: str) -> int:
        return sum(row[column] is not None for row in _objects(answers))


def _objects(paths: Sequence[Path]) -> Iterator[dict[str, Any]]:
    for path in paths:
        yield from map(json.loads, path.read_bytes().splitlines())


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
    # Also of a class that is derived from one of them.
    for kind in type(data).__mro__:
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
                pass
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


def require_distinct(names: Sequence[str]) -> None:
    """Raises InvalidInputError if two columns have one name."""
    if len(set(names)) < len(names):
        name = next(name for place, name in enumerate(names) if name in names[:place])
        raise InvalidInputError(f"The rows have two columns '{name}'.")


def _line(row: Mapping[str, Any], number: int) -> bytes:
    try:
        return _encoded(row)
    except (TypeError, ValueError) as error:
        raise InvalidInputError(f"Row {number}: {_unsent(row)} is no JSON.") from error


def _unsent(row: Mapping[str, Any]) -> str:
    for name, value in row.items():
        try:
            _encoded({name: value})
        except (TypeError, ValueError):
            return f"the value of '{name}'".encode(errors="replace").decode()
    return "its value"


def _encoded(row: Mapping[str, Any]) -> bytes:
    # Half a surrogate pair is no UTF-8.
    return json.dumps(row, ensure_ascii=False, allow_nan=False).encode()
