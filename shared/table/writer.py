"""The writer: a process that makes the files of a table from a batch's result files.

What it parses is a tenant's, and answers of a model: so it has no environment, no credentials and
no network address, and a limit of memory. It reads by asking its parent. Its memory does not grow
with the batch.
"""

import heapq
import io
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from shared import ids
from shared.dataset.carrying import Carried, DamagedError
from shared.dataset.frames import Done, Kind, Problem, encoded
from shared.dataset.pipes import Pipes, RemoteFile, begin
from shared.table.answer_shape import shape_of
from shared.table.files import (
    GROUP_BYTES,
    arrow_type,
    as_text,
    has_bare_object,
    write_files,
)
from shared.table.frames import CARRIED, ERROR, OUTPUT, TableJob
from shared.table.output import Column
from shared.table.result_rows import ResultRow, dimensions_of, result_row

#: Rows that are converted together.
_ROWS_TOGETHER = 1024
_READ_BYTES = 1024 * 1024
_NUMBERS = ("status_code", "input_tokens", "cached_tokens", "output_tokens")


class Writing:
    """One job: result lines in, tables out."""

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

    def tables(self) -> Iterator[pa.Table]:
        """The rows in small tables. Raises DamagedError."""
        some: list[ResultRow] = []
        size = 0
        for line in self._lines():
            some.append(result_row(line, self._shape, self._dimensions))
            size += len(line)
            if len(some) >= _ROWS_TOGETHER or size >= GROUP_BYTES:
                yield self._table(some)
                some, size = [], 0
        if some:
            yield self._table(some)

    def _table(self, rows: Sequence[ResultRow]) -> pa.Table:
        carried = None if self._carried is None else self._carried.take(len(rows))
        columns = []
        for column, field in zip(self._job.table.columns, self.schema, strict=True):
            if carried is not None and column.carried is not None:
                given = carried.column(column.carried)
                if given.type != field.type:
                    given = pa.array(map(as_text, given.to_pylist()), field.type)
                columns.append(given)
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
            found = self._carried.schema.field(index).type if index >= 0 else pa.null()
            # As JSON it can be stored in every format.
            is_bare = self._job.table.format == "parquet" and has_bare_object(found)
            return pa.string() if is_bare else found
        if column.source == "parsed" and self._shape is not None:
            return arrow_type(self._shape)
        if column.field is not None and self._shape is not None:
            return arrow_type(self._shape.fields[column.field])
        if column.source == "embedding":
            return pa.list_(pa.float32(), self._dimensions or -1)
        return pa.int64() if column.source in _NUMBERS else pa.string()


def _value(row: ResultRow, column: Column) -> Any:
    if column.source == "parsed":
        return row.parsed
    if column.field is not None:
        return None if row.parsed is None else row.parsed.get(column.field)
    return row.values.get(column.source)


def main() -> None:
    """Do the job that the parent sends."""
    pipes = Pipes(sys.stdin.buffer, sys.stdout.buffer)
    try:
        job = begin(pipes, TableJob)
        rows = problems = 0
        try:
            writing = Writing(job, pipes)
            rows = write_files(pipes, job, writing.schema, writing.tables())
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
