"""The writer of a table of rows: a process that makes its files from lines of JSON.

What it parses is a tenant's, and answers of a model: so it has no environment, no credentials and
no network address, and a limit of memory. It reads the rows twice: first for the types of those
columns of which nobody knows them. Its memory does not grow with the rows.
"""

import io
import math
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from shared.dataset.frames import Done, Kind, encoded
from shared.dataset.pipes import Pipes, RemoteFile, begin
from shared.table.files import (
    GROUP_BYTES,
    arrow_type,
    as_text,
    has_bare_object,
    write_files,
)
from shared.table.frames import RowsJob
from shared.table.json_look import JsonLook

_ROWS_TOGETHER = 1024
_READ_BYTES = 1024 * 1024
#: Of columns whose values have no type in common: they are JSON.
_TEXT = pa.string()
_Rows = list[dict[str, Any]]


class RowsWriting:
    """One job: rows in, tables out."""

    def __init__(self, job: RowsJob, pipes: Pipes) -> None:
        self._job = job
        self._pipes = pipes
        types = self._types()
        self.schema = pa.schema(
            [pa.field(column.name, types[column.source]) for column in job.table.columns]
        )

    def tables(self) -> Iterator[pa.Table]:
        """The rows in small tables."""
        for rows in self._rows():
            columns = [
                _array([row.get(column.source) for row in rows], field.type)
                for column, field in zip(self._job.table.columns, self.schema, strict=True)
            ]
            yield pa.table(columns, schema=self.schema)

    def _types(self) -> dict[str, pa.DataType]:
        table = self._job.table
        known = {name: arrow_type(shape) for name, shape in table.shapes.items()}
        found = dict.fromkeys({column.source for column in table.columns} - known.keys(), pa.null())
        lengths = {name: set[int]() for name in table.embeddings if name in found}
        looks = {name: JsonLook() for name in found}
        for rows in self._rows() if found else ():
            for name, before in found.items():
                values = [row.get(name) for row in rows]
                if name in lengths:
                    lengths[name].update(len(one) for one in values if one is not None)
                elif before != _TEXT:
                    is_typed = looks[name].has_types(values)
                    found[name] = _together(before, _type_of(values)) if is_typed else _TEXT
        embeddings = {name: _vectors(some) for name, some in lengths.items()}
        return {**{name: _storable(one) for name, one in found.items()}, **known, **embeddings}

    def _rows(self) -> Iterator[_Rows]:
        """Some of the rows at a time, in order."""
        raw: io.RawIOBase = RemoteFile(self._pipes, 0, self._job.sizes[0])
        some, size = list[dict[str, Any]](), 0
        for line in io.BufferedReader(raw, _READ_BYTES):
            some.append(msgspec.json.decode(line))
            size += len(line)
            if len(some) >= _ROWS_TOGETHER or size >= GROUP_BYTES:
                yield some
                some, size = [], 0
        if some:
            yield some


def _type_of(values: Sequence[Any]) -> pa.DataType:
    """The type that these values have in common."""
    try:
        return pa.array(values).type
    except (pa.ArrowException, OverflowError):
        return _TEXT


def _together(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """The type for values of both."""
    if one == other:
        return one
    schemas = [pa.schema([pa.field("values", each)]) for each in (one, other)]
    try:
        return pa.unify_schemas(schemas, promote_options="permissive").field(0).type
    except pa.ArrowException:
        return _TEXT


def _storable(found: pa.DataType) -> pa.DataType:
    """The type as all formats can hold it: an object without fields is JSON, as is what is null."""
    return _TEXT if pa.types.is_null(found) or has_bare_object(found) else found


def _vectors(lengths: set[int]) -> pa.DataType:
    """Of a fixed size, if all have it."""
    return pa.list_(pa.float32(), lengths.pop() if len(lengths) == 1 else -1)


def _array(values: Sequence[Any], type_: pa.DataType) -> pa.Array:
    if pa.types.is_string(type_):
        values = [as_text(one) for one in values]
    try:
        return pa.array(values, type_)
    except (pa.ArrowInvalid, OverflowError):
        # A schema says `number`, and an answer has an integer with more digits than a fraction.
        return pa.array([_rounded(one, type_) for one in values], type_)


def _rounded(value: Any, type_: pa.DataType) -> Any:
    """The value with fractions where its type has them."""
    if value is None:
        return None
    if pa.types.is_struct(type_):
        return {field.name: _rounded(value.get(field.name), field.type) for field in type_}
    if pa.types.is_list(type_) or pa.types.is_fixed_size_list(type_):
        return [_rounded(one, type_.value_type) for one in value]
    if pa.types.is_floating(type_):
        try:
            return float(value)
        except OverflowError:
            return math.inf if value > 0 else -math.inf
    return value


def main() -> None:
    """Do the job that the parent sends."""
    pipes = Pipes(sys.stdin.buffer, sys.stdout.buffer)
    try:
        job = begin(pipes, RowsJob)
        writing = RowsWriting(job, pipes)
        rows = write_files(pipes, job, writing.schema, writing.tables())
        pipes.send(encoded(Kind.DONE, Done(rows, rows, 0)))
    except (EOFError, BrokenPipeError, MemoryError):
        # The parent is gone, or says what happened.
        os._exit(1)


if __name__ == "__main__":
    main()
