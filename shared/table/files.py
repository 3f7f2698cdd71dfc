"""The files of a table in each format, as a process writes them: its parent stores them."""

import csv
import io
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from shared.dataset.formats import in_microseconds
from shared.dataset.frames import Kind, encoded, frame
from shared.dataset.pipes import Pipes
from shared.table.answer_shape import Shape
from shared.table.frames import FileEnd, RowsJob, TableJob

#: Rows and bytes that are written together.
_GROUP_ROWS = 65_536
GROUP_BYTES = 16 * 1024 * 1024
_FRAME_BYTES = 1024 * 1024


def write_files(
    pipes: Pipes, job: TableJob | RowsJob, schema: pa.Schema, tables: Iterable[pa.Table]
) -> int:
    """Send the files of these rows. Returns the number of rows. Raises what `tables` raises."""
    rows = in_file = 0
    sink, file = None, None
    for group in _groups(tables, min(GROUP_BYTES, job.file_bytes)):
        if sink is None or file is None:
            sink = Sink(pipes)
            file = _FILES[job.table.format](sink, schema)
        file.write_table(group)
        rows += group.num_rows
        in_file += group.num_rows
        if sink.size >= job.file_bytes:
            _end(pipes, file, in_file)
            sink, in_file = None, 0
    if sink is not None and file is not None:
        _end(pipes, file, in_file)
    return rows


def _end(pipes: Pipes, file: "_TableFile", rows: int) -> None:
    file.close()
    pipes.send(encoded(Kind.FILE_END, FileEnd(rows)))


def _groups(tables: Iterable[pa.Table], enough: int) -> Iterator[pa.Table]:
    """The rows in tables that are worth a write."""
    waiting: list[pa.Table] = []
    rows = size = 0
    for table in tables:
        waiting.append(table)
        rows += table.num_rows
        size += table.nbytes
        if rows >= _GROUP_ROWS or size >= enough:
            yield pa.concat_tables(waiting).combine_chunks()
            waiting, rows, size = [], 0, 0
    if waiting:
        yield pa.concat_tables(waiting).combine_chunks()


def arrow_type(shape: Shape) -> pa.DataType:
    """The type of a column whose values have this shape."""
    match shape.kind:
        case "integer":
            return pa.int64()
        case "number":
            return pa.float64()
        case "boolean":
            return pa.bool_()
        case "list" if shape.items is not None:
            return pa.list_(arrow_type(shape.items))
        case "object":
            return pa.struct([(name, arrow_type(one)) for name, one in shape.fields.items()])
        case _:
            return pa.string()


def has_bare_object(found: pa.DataType) -> bool:
    """Whether the type has an object without fields, which Parquet does not know."""
    if pa.types.is_struct(found):
        fields = [found.field(number).type for number in range(found.num_fields)]
        return not fields or any(map(has_bare_object, fields))
    return pa.types.is_list(found) and has_bare_object(found.value_type)


def as_text(value: object) -> str | None:
    """The value in a column of texts: JSON, unless it is one."""
    if value is None or isinstance(value, str):
        return value
    return msgspec.json.encode(value).decode()


class _TableFile(Protocol):
    """A file that is written in one of the formats."""

    def write_table(self, table: pa.Table) -> None: ...

    def close(self) -> None: ...


class Sink(io.RawIOBase):
    """A file of the table, on its way to the parent."""

    def __init__(self, pipes: Pipes) -> None:
        self._pipes = pipes
        self.size = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.size

    def write(self, body: Any) -> int:
        view = memoryview(body).cast("B")
        for start in range(0, len(view), _FRAME_BYTES):
            self._pipes.send(frame(Kind.FILE, bytes(view[start : start + _FRAME_BYTES])))
        self.size += len(view)
        return len(view)


class _Parquet:
    """A Parquet file; each write is a row group."""

    def __init__(self, sink: Sink, schema: pa.Schema) -> None:
        self._writer = pq.ParquetWriter(pa.PythonFile(sink, mode="w"), schema, compression="zstd")

    def write_table(self, table: pa.Table) -> None:
        self._writer.write_table(table)

    def close(self) -> None:
        self._writer.close()


class _Csv:
    """A CSV file with a head; lists and objects are JSON."""

    def __init__(self, sink: Sink, schema: pa.Schema) -> None:
        self._sink = sink
        self._write([schema.names])

    def write_table(self, table: pa.Table) -> None:
        columns = [_plain(column) for column in table.columns]
        self._write([_cell(value) for value in row] for row in zip(*columns, strict=True))

    def close(self) -> None:
        pass

    def _write(self, rows: Any) -> None:
        text = io.StringIO(newline="")
        csv.writer(text, lineterminator="\n").writerows(rows)
        self._sink.write(text.getvalue().encode())


class _Jsonl:
    """A file of JSON objects."""

    def __init__(self, sink: Sink, schema: pa.Schema) -> None:
        self._sink = sink
        self._names = schema.names

    def write_table(self, table: pa.Table) -> None:
        columns = [_plain(column) for column in table.columns]
        rows = (dict(zip(self._names, row, strict=True)) for row in zip(*columns, strict=True))
        self._sink.write(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))

    def close(self) -> None:
        pass


_FILES: dict[str, type[_Parquet | _Csv | _Jsonl]] = {
    "parquet": _Parquet,
    "csv": _Csv,
    "jsonl": _Jsonl,
}


def _plain(column: pa.ChunkedArray) -> list[Any]:
    """The values as texts and formats of text hold them."""
    if pa.types.is_temporal(column.type):
        # Python's own times have no nanoseconds.
        column = column.cast(pa.string())
    elif (type_ := in_microseconds(column.type)) != column.type:
        column = column.cast(type_, safe=False)
    found: list[Any] = column.to_pylist()
    return found


def _cell(value: object) -> object:
    if isinstance(value, bool | list | dict | bytes):
        return msgspec.json.encode(value).decode().strip('"')
    return value
