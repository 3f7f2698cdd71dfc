"""The columns that rows carry along into their batch's table, as one object.

It is a list of chunks: the length of the body in four bytes, its CRC-32 in four, and the body, a
stream of Arrow's IPC format. The last chunk has no rows, and the schema that fits all; its whole
length follows in eight bytes. Runs in processes without credentials.
"""

import io
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.ipc

from shared.dataset.arrow_types import with_leaves
from shared.errors import BatchyardError

#: Rows and bytes of a chunk.
_ROWS_TOGETHER = 1024
_BYTES_TOGETHER = 8 * 1024 * 1024
_HEAD_BYTES = 8
_END_BYTES = 8


class MixedTypesError(BatchyardError):
    """A column whose values have types that are not one type. Quotes nothing of them."""


class DamagedError(BatchyardError):
    """The object is not what was written."""


class Carrier:
    """Makes the object from rows, as chunks of bytes. Raises MixedTypesError."""

    def __init__(self, columns: Sequence[str]) -> None:
        self.columns = list(columns)
        self._given: dict[str, Any] = {}
        self._batch: pa.RecordBatch | None = None
        self._index = 0
        self._chosen: list[int] = []
        self._rows: list[dict[str, Any]] = []
        self._bytes = 0
        self._pieces: list[pa.RecordBatch] = []
        self._schema = pa.schema([])
        #: Of columns with integers that are no fractions: one of them.
        self._long: dict[str, pa.Array] = {}

    def look_at(self, batch: pa.RecordBatch, index: int) -> None:
        """The row that is read now is this one of a table's."""
        if batch is not self._batch:
            self._take()
            self._batch = batch
        self._index = index

    def keep(self, row: dict[str, Any]) -> Iterator[bytes]:
        """The row goes along."""
        given = {name: row.get(name) for name in self.columns}
        if self._batch is None:
            self._rows.append(given)
            self._bytes += sum(len(one) for one in given.values() if isinstance(one, str))
        else:
            self._given = given
            self._chosen.append(self._index)
        waiting = len(self._rows) + len(self._chosen) + sum(one.num_rows for one in self._pieces)
        if waiting >= _ROWS_TOGETHER or self._bytes >= _BYTES_TOGETHER:
            yield from self.flush()

    def leave(self) -> None:
        """The rows of another object follow."""
        self._take()
        self._batch = None

    def flush(self) -> Iterator[bytes]:
        """The rows so far."""
        self._take()
        for piece in self._pieces:
            yield from self._chunks(piece)
        self._pieces = []
        self._bytes = 0

    def end(self) -> Iterator[bytes]:
        """The rest, and the schema."""
        yield from self.flush()
        last = _chunk(self._schema.empty_table().to_batches(), self._schema)
        yield last + len(last).to_bytes(_END_BYTES)

    def _take(self) -> None:
        """Make the rows that were chosen a piece of their own."""
        if self._rows:
            values = {name: [row[name] for row in self._rows] for name in self.columns}
            self._pieces.append(pa.RecordBatch.from_pydict(self._typed(values)))
            self._rows = []
        if self._batch is not None and self._chosen:
            chosen = self._batch.take(pa.array(self._chosen, pa.int32()))
            has = set(self._batch.schema.names)
            arrays = [
                # What the folders say is the same for all rows of an object.
                chosen.column(name) if name in has else pa.repeat(self._given[name], len(chosen))
                for name in self.columns
            ]
            self._pieces.append(pa.RecordBatch.from_arrays(arrays, names=self.columns))
            self._chosen = []

    def _typed(self, values: dict[str, list[Any]]) -> dict[str, pa.Array]:
        typed = {}
        for name, column in values.items():
            try:
                typed[name] = pa.array(column)
            except (pa.ArrowException, TypeError, ValueError, OverflowError):
                raise _mixed(name) from None
        return typed

    def _chunks(self, batch: pa.RecordBatch) -> Iterator[bytes]:
        if batch.nbytes > _BYTES_TOGETHER and batch.num_rows > 1:
            half = batch.num_rows // 2
            yield from self._chunks(batch.slice(0, half))
            yield from self._chunks(batch.slice(half))
            return
        self._schema = _unified(self._schema, batch.schema.remove_metadata())
        for name in batch.schema.names:
            self._require_exact(name, batch.column(name))
        yield _chunk([batch], batch.schema)

    def _require_exact(self, name: str, column: pa.Array) -> None:
        """Raise if the type for all rows so far does not have each value of the column.

        Found only when the rows have run, it would cost the whole table.
        """
        if name not in self._long and not _fits(column, fractions := _in_fractions(column.type)):
            rows = (column.slice(row, 1) for row in range(len(column)))
            self._long[name] = next(row for row in rows if not _fits(row, fractions))
        type_ = self._schema.field(name).type
        if not (_fits(column, type_) and _fits(self._long.get(name, column), type_)):
            raise _mixed(name)


class Carried:
    """Reads the object. Raises DamagedError."""

    def __init__(self, file: io.BufferedIOBase, size: int) -> None:
        self._file = file
        self._end = size
        self._left: pa.Table | None = None
        try:
            file.seek(size - _END_BYTES)
            length = int.from_bytes(file.read(_END_BYTES))
            if not 0 < length <= size - _END_BYTES:
                raise DamagedError("its end is not what was written")
            self._end = size - _END_BYTES - length
            file.seek(self._end)
            self.schema: pa.Schema = _table(io.BytesIO(file.read(length))).schema
            file.seek(0)
        except (OSError, ValueError) as error:
            raise DamagedError("it is too short") from error
        self._at = 0

    def take(self, rows: int) -> pa.Table:
        """The next rows, with the types that fit all."""
        found = [] if self._left is None else [self._left]
        while sum(one.num_rows for one in found) < rows:
            if self._at >= self._end:
                raise DamagedError("it has fewer rows than the batch")
            table = _table(self._file)
            self._at = self._file.tell()
            found.append(table.cast(self.schema))
        table = pa.concat_tables(found) if found else self.schema.empty_table()
        self._left = table.slice(rows)
        return table.slice(0, rows)


def _unified(schema: pa.Schema, other: pa.Schema) -> pa.Schema:
    if schema.equals(other) or not len(schema):
        return other
    for name in other.names:
        try:
            pa.unify_schemas(
                [pa.schema([one.field(name)]) for one in (schema, other)],
                promote_options="permissive",
            )
        except pa.ArrowException:
            raise _mixed(name) from None
    return pa.unify_schemas([schema, other], promote_options="permissive")


def _fits(column: pa.Array, type_: pa.DataType) -> bool:
    """Whether the type has all values of the column."""
    if column.type == type_:
        return True
    try:
        column.cast(type_)
    except pa.ArrowInvalid:
        return False
    return True


def _in_fractions(type_: pa.DataType) -> pa.DataType:
    """The type with fractions in place of integers."""
    return with_leaves(type_, lambda leaf: pa.float64() if pa.types.is_integer(leaf) else leaf)


def _mixed(name: str) -> MixedTypesError:
    return MixedTypesError(f"column '{name}' holds values of several types that are not one")


def _chunk(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> bytes:
    sink = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
    with pa.ipc.new_stream(sink, schema, options=options) as writer:
        for batch in batches:
            writer.write_batch(batch)
    body = sink.getvalue()
    return len(body).to_bytes(4) + zlib.crc32(body).to_bytes(4) + body


def _table(file: io.BufferedIOBase) -> pa.Table:
    """The next chunk. Raises DamagedError."""
    head = file.read(_HEAD_BYTES)
    body = file.read(int.from_bytes(head[:4]))
    if len(head) < _HEAD_BYTES or zlib.crc32(body) != int.from_bytes(head[4:]):
        raise DamagedError("its bytes are not those that were written")
    return pa.ipc.open_stream(body).read_all()
