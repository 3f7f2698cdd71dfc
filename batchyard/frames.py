"""Rows in Arrow, and in pandas and Polars, which are loaded only where they are given."""

import csv
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from batchyard.rows import require_distinct
from shared.errors import InvalidInputError

try:
    import pyarrow as pa
    import pyarrow.ipc
    import pyarrow.parquet as pq
except ModuleNotFoundError as missing:
    raise InvalidInputError(
        "Tables need Arrow. Install it: pip install 'batchyard[arrow]' (or [pandas], [polars])"
    ) from missing

#: The same rows make the same bytes, however they lie in memory: by them a batch is found again.
_ROWS_TOGETHER = 65_536
#: The longest text in a file of CSV: as much of an object as one row may be at the gateway.
_MAX_FIELD = 16 * 1024 * 1024
#: What Arrow raises for values that are none of its own, and for whole numbers of over 64 bits.
_NO_ARROW = (pa.ArrowException, ValueError, TypeError, OverflowError)


class ArrowRows:
    """Rows of an Arrow table, with a way to put columns beside what the caller gave."""

    answers_format: Literal["jsonl", "parquet"] = "parquet"

    def __init__(
        self, table: pa.Table, join: Callable[[pa.Table], Any], path: Path | None = None
    ) -> None:
        """The rows, what makes the caller's kind of the answers, and the file that has the rows.

        Raises InvalidInputError if two columns have one name.
        """
        require_distinct(table.column_names)
        self._table = table
        self.join = join
        self._path = path
        self.count: int = table.num_rows
        self.names: Sequence[str] = table.column_names

    def file(self, folder: Path) -> Path:
        if self._path is not None:
            return self._path
        path = folder / "rows.parquet"
        schema = self._table.schema.remove_metadata()
        try:
            with pq.ParquetWriter(path, schema) as writer:
                for start in range(0, self.count, _ROWS_TOGETHER):
                    some = self._table.slice(start, _ROWS_TOGETHER).combine_chunks()
                    writer.write_table(some.replace_schema_metadata(None))
        except pa.ArrowException as error:
            raise InvalidInputError("The table has a column that Parquet cannot hold.") from error
        return path

    def joined(self, answers: Sequence[Path]) -> tuple[Any, int]:
        made = pa.concat_tables(map(pq.read_table, answers), promote_options="permissive")
        return (self.join(made) if made.num_rows == self.count else None), made.num_rows

    def failed(self, answers: Sequence[Path], column: str) -> int:
        tables = [pq.read_table(path, columns=[column]) for path in answers]
        return sum(table.num_rows - table[column].null_count for table in tables)


def of_arrow(table: pa.Table) -> ArrowRows:
    """The rows of an Arrow table."""

    def joined(answers: pa.Table) -> pa.Table:
        found = table
        for name in answers.column_names:
            found = found.append_column(answers.schema.field(name), answers[name])
        return found

    return ArrowRows(table, joined)


def of_pandas(frame: Any) -> ArrowRows:
    """The rows of a pandas DataFrame, without its index. Raises InvalidInputError."""
    import pandas as pd  # type: ignore[import-untyped]  # its stubs are a package of their own

    #: Missing answers leave whole numbers whole.
    kinds = {pa.int64(): pd.Int64Dtype(), pa.bool_(): pd.BooleanDtype()}

    def joined(answers: pa.Table) -> Any:
        made = answers.to_pandas(types_mapper=kinds.get)
        # `assign` could not take a column that is called `self`.
        found = frame.copy()
        for name in made:
            found[str(name)] = made[name].array
        return found

    if frame.columns.nlevels > 1:
        # A template could not name them, and pandas would make columns of several levels of ours.
        raise InvalidInputError("The DataFrame's columns have several levels; give them one.")
    require_distinct(list(map(str, frame.columns)))
    try:
        table = pa.Table.from_pandas(frame, preserve_index=False)
    except _NO_ARROW as error:
        raise InvalidInputError(_unsent(frame)) from error
    return ArrowRows(table, joined)


def of_polars(frame: Any) -> ArrowRows:
    """The rows of a Polars DataFrame. Raises InvalidInputError."""
    import polars as pl

    def joined(answers: pa.Table) -> Any:
        return frame.hstack(pl.DataFrame(answers))

    if objects := [name for name, kind in frame.schema.items() if kind == pl.Object]:
        raise InvalidInputError(f"The DataFrame's column '{objects[0]}' has Python's own objects.")
    try:
        table = frame.to_arrow()
    except pa.ArrowException as error:
        raise InvalidInputError(
            "The DataFrame has a column of a type that Arrow has not."
        ) from error
    return ArrowRows(table, joined)


def of_file(path: Path) -> ArrowRows:
    """The rows of a file of Parquet, Arrow or CSV. Raises InvalidInputError."""
    read = {".parquet": _parquet, ".pq": _parquet, ".csv": _csv}
    try:
        table = read.get(path.suffix.lower(), _ipc)(path)
    except UnicodeDecodeError as error:
        raise InvalidInputError(f"{path}: it is not UTF-8.") from error
    except (pa.ArrowException, csv.Error, ValueError) as error:
        raise InvalidInputError(f"{path}: it is not what its name says.") from error
    rows = of_arrow(table)
    return ArrowRows(table, rows.join, path)


def _parquet(path: Path) -> pa.Table:
    # `read_table` refuses two columns of one name in words of its own.
    with pq.ParquetFile(path) as file:
        return file.read()


def _ipc(path: Path) -> pa.Table:
    with pa.memory_map(str(path)) as file:
        return pyarrow.ipc.open_file(file).read_all()


def _csv(path: Path) -> pa.Table:
    """Values are texts as they stand, as the gateway reads them."""
    # One limit for the whole process, 128 KiB at first. Whoever raised it more keeps that.
    csv.field_size_limit(max(csv.field_size_limit(), _MAX_FIELD))
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, strict=True)
        filled = (row for row in reader if row)
        names, rows = next(filled, []), list[list[str]]()
        for row in filled:
            if len(row) != len(names):
                raise InvalidInputError(
                    f"{path}: line {reader.line_num} has {len(row)} values, and there are "
                    f"{len(names)} columns."
                )
            rows.append(row)
    columns = list(zip(*rows, strict=True)) or [()] * len(names)
    return pa.table([pa.array(column, pa.string()) for column in columns], names=names)


def _unsent(frame: Any) -> str:
    """Which column of a pandas DataFrame is none of Arrow's, whose own words quote values."""
    for name, column in frame.items():
        try:
            pa.Array.from_pandas(column)
        except _NO_ARROW:
            return (
                f"The DataFrame's column '{name}' has values of several types, or of a type that "
                "Arrow has not."
            )
    return "The DataFrame has a column that Arrow has not."
