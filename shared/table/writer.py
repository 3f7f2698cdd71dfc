"""The writer: a process that makes the files of a table from a batch's result files.

What it parses is a tenant's, and answers of a model: so it has no environment, no credentials and
no network address, and a limit of memory. It reads by asking its parent. Its memory does not grow
with the batch.
"""

import csv
import heapq
import io
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from shared import ids
from shared.dataset.carrying import Carried, DamagedError
from shared.dataset.frames import Done, Kind, Problem, encoded, frame
from shared.dataset.pipes import Pipes, RemoteFile, begin
from shared.table.answer_shape import Shape, shape_of
from shared.table.frames import CARRIED, ERROR, OUTPUT, FileEnd, TableJob
from shared.table.output import Column
from shared.table.result_rows import ResultRow, dimensions_of, result_row

#: Rows that are converted together, and rows and bytes that are written together.
_ROWS_TOGETHER = 1024
_GROUP_ROWS = 65_536
_GROUP_BYTES = 16 * 1024 * 1024
_READ_BYTES = 1024 * 1024
_FRAME_BYTES = 1024 * 1024
_NUMBERS = ("status_code", "input_tokens", "cached_tokens", "output_tokens")


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


class Writing:
    """One job: result lines in, files out."""

    def __init__(self, job: TableJob, pipes: Pipes) -> None:
        """Raises DamagedError."""
        self._job = job
        self._pipes = pipes
        self._shape = None if job.table.schema is None else shape_of(job.table.schema)
        self._carried: Carried | None = None
        if any(column.carried is not None for column in job.table.columns):
            self._carried = Carried(self._file(CARRIED), job.sizes[CARRIED])
        self._dimensions = self._first_dimensions()
        self.schema = pa.schema([pa.field(one.name, self._type(one)) for one in job.table.columns])

    def run(self) -> int:
        """Send the files. Returns the number of rows. Raises DamagedError."""
        rows = in_file = 0
        sink, file = None, None
        for group in self._groups():
            if sink is None or file is None:
                sink = Sink(self._pipes)
                file = _FILES[self._job.table.format](sink, self.schema)
            file.write_table(group)
            rows += group.num_rows
            in_file += group.num_rows
            if sink.size >= self._job.file_bytes:
                self._end(file, in_file)
                sink, in_file = None, 0
        if sink is not None and file is not None:
            self._end(file, in_file)
        return rows

    def _end(self, file: _TableFile, rows: int) -> None:
        file.close()
        self._pipes.send(encoded(Kind.FILE_END, FileEnd(rows)))

    def _groups(self) -> Iterator[pa.Table]:
        """The rows in tables that are worth a write."""
        waiting: list[pa.Table] = []
        enough = min(_GROUP_BYTES, self._job.file_bytes)
        rows = size = 0
        for table in self._tables():
            waiting.append(table)
            rows += table.num_rows
            size += table.nbytes
            if rows >= _GROUP_ROWS or size >= enough:
                yield pa.concat_tables(waiting).combine_chunks()
                waiting, rows, size = [], 0, 0
        if waiting:
            yield pa.concat_tables(waiting).combine_chunks()

    def _tables(self) -> Iterator[pa.Table]:
        """The rows in small tables."""
        some: list[ResultRow] = []
        size = 0
        for line in self._lines():
            some.append(result_row(line, self._shape, self._dimensions))
            size += len(line)
            if len(some) >= _ROWS_TOGETHER or size >= _GROUP_BYTES:
                yield self._table(some)
                some, size = [], 0
        if some:
            yield self._table(some)

    def _table(self, rows: Sequence[ResultRow]) -> pa.Table:
        carried = None if self._carried is None else self._carried.take(len(rows))
        columns = []
        for column, field in zip(self._job.table.columns, self.schema, strict=True):
            if carried is not None and column.carried is not None:
                columns.append(carried.column(column.carried))
            else:
                columns.append(pa.array([_value(row, column) for row in rows], field.type))
        return pa.table(columns, schema=self.schema)

    def _lines(self) -> Iterator[bytes]:
        """The lines of both files in the order of their rows."""
        streams = [self._keyed(number) for number in (OUTPUT, ERROR) if self._job.sizes[number]]
        return (line for _, line in heapq.merge(*streams))

    def _keyed(self, number: int) -> Iterator[tuple[int, bytes]]:
        for line in self._file(number):
            yield ids.row_of_result(line), line

    def _first_dimensions(self) -> int:
        wanted = any(column.source == "embedding" for column in self._job.table.columns)
        if not wanted or not self._job.sizes[OUTPUT]:
            return 0
        return dimensions_of(self._file(OUTPUT).readline())

    def _file(self, number: int) -> io.BufferedReader:
        source: io.RawIOBase = RemoteFile(self._pipes, number, self._job.sizes[number])
        return io.BufferedReader(source, _READ_BYTES)

    def _type(self, column: Column) -> pa.DataType:
        if column.carried is not None and self._carried is not None:
            index = self._carried.schema.get_field_index(column.carried)
            return self._carried.schema.field(index).type if index >= 0 else pa.null()
        if column.source == "parsed" and self._shape is not None:
            return _arrow_type(self._shape)
        if column.field is not None and self._shape is not None:
            return _arrow_type(self._shape.fields[column.field])
        if column.source == "embedding":
            return pa.list_(pa.float32(), self._dimensions or -1)
        return pa.int64() if column.source in _NUMBERS else pa.string()


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


def _value(row: ResultRow, column: Column) -> Any:
    if column.source == "parsed":
        return row.parsed
    if column.field is not None:
        return None if row.parsed is None else row.parsed.get(column.field)
    return row.values.get(column.source)


def _arrow_type(shape: Shape) -> pa.DataType:
    match shape.kind:
        case "integer":
            return pa.int64()
        case "number":
            return pa.float64()
        case "boolean":
            return pa.bool_()
        case "list" if shape.items is not None:
            return pa.list_(_arrow_type(shape.items))
        case "object":
            return pa.struct([(name, _arrow_type(one)) for name, one in shape.fields.items()])
        case _:
            return pa.string()


def _plain(column: pa.ChunkedArray) -> list[Any]:
    """The values as texts and formats of text hold them."""
    if pa.types.is_temporal(column.type):
        # Python's own times have no nanoseconds.
        column = column.cast(pa.string())
    found: list[Any] = column.to_pylist()
    return found


def _cell(value: object) -> object:
    if isinstance(value, bool | list | dict | bytes):
        return msgspec.json.encode(value).decode().strip('"')
    return value


def main() -> None:
    """Do the job that the parent sends."""
    pipes = Pipes(sys.stdin.buffer, sys.stdout.buffer)
    try:
        job = begin(pipes, TableJob)
        rows = problems = 0
        try:
            rows = Writing(job, pipes).run()
        except DamagedError as error:
            text = f"What the input's rows carry along is lost: {error}."
            pipes.send(encoded(Kind.PROBLEM, Problem("carried_lost", text, "input.carry")))
            problems = 1
        pipes.send(encoded(Kind.DONE, Done(rows, rows, problems)))
    except (EOFError, BrokenPipeError, MemoryError):
        # The parent is gone, or says what happened.
        os._exit(1)


if __name__ == "__main__":
    main()
