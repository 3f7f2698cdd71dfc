"""The rows of an object, by its format. Runs in the renderer's process, which has no credentials.

A value of a CSV file is text as it stands: `007` stays `007`.
"""

import base64
import csv
import io
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq

from shared.dataset.arrow_types import with_leaves
from shared.dataset.carrying import Carrier
from shared.dataset.dataset import Source
from shared.errors import BatchyardError

Row = dict[str, Any]

#: Rows of a table that are Python values at a time.
_ROWS_TOGETHER = 1024
#: As much of an object as one row may be.
MAX_OBJECT_BYTES = 16 * 1024 * 1024
_CHUNK_BYTES = 1024 * 1024
_BYTE_ORDER_MARK = "\ufeff"
_IMAGE_TYPES = {"jpg": "jpeg"}
#: How images begin. An uploaded one has a key without an ending.
_IMAGE_MARKS = {b"\x89PNG": "png", b"\xff\xd8\xff": "jpeg", b"GIF8": "gif", b"RIFF": "webp"}
#: What readers raise for objects, types and values that they were not made for.
_FAULTS = (
    pa.ArrowException,
    ArithmeticError,
    ImportError,
    LookupError,
    OSError,
    RecursionError,
    TypeError,
    ValueError,
)


class UnreadableError(BatchyardError):
    """The object is not what its format says. The reason quotes nothing of it."""


class MissingColumnError(BatchyardError):
    """A column that is needed and that the object does not have."""

    def __init__(self, name: str, has: Collection[str]) -> None:
        super().__init__(name)
        self.name = name
        self.has = sorted(has)


class Needed:
    """The columns that a template, a filter and the client's lists need."""

    def __init__(self, names: Collection[str], *, has_all: bool, carrier: Carrier) -> None:
        """These, perhaps all others, and those that are carried along."""
        self._names = set(names)
        self._has_all = has_all
        self.carrier = carrier

    def of(self, has: Collection[str], given: Collection[str]) -> list[str]:
        """Those that rows show, beside those that are `given`.

        Raises MissingColumnError, and UnreadableError if two columns have the name of one of them.
        """
        for name in sorted(self._names.union(self.carrier.columns) - set(has) - set(given)):
            raise MissingColumnError(name, [*has, *given])
        shown = [name for name in has if self._has_all or name in self._names]
        for name, times in Counter(has).items():
            if times > 1 and (name in shown or name in self.carrier.columns):
                raise UnreadableError(f"it has {times} columns '{name}'")
        return shown

    def read(self, has: Collection[str], given: Collection[str]) -> list[str]:
        """Those that are read, as `of`."""
        shown = self.of(has, given)
        return shown + [name for name in self.carrier.columns if name in has and name not in shown]


def rows_of(source: Source, file: io.RawIOBase, needed: Needed) -> Iterator[Row]:
    """The object's rows in order, each with the columns of its folders.

    Raises UnreadableError, MissingColumnError and MixedTypesError.
    """
    try:
        for row in _READERS[source.format](source, file, needed):
            yield {**source.columns, **row} if source.columns else row
        needed.carrier.leave()
    except UnicodeDecodeError as error:
        raise UnreadableError("it is no UTF-8") from error
    except _FAULTS as error:
        # Arrow's and Python's own words may quote a value.
        raise UnreadableError(f"it cannot be read as {source.format}") from error


def _parquet(source: Source, file: io.RawIOBase, needed: Needed) -> Iterator[Row]:
    table = pq.ParquetFile(pa.PythonFile(file, mode="r"), buffer_size=_CHUNK_BYTES)
    has = table.schema_arrow.names
    shown, columns = needed.of(has, source.columns), needed.read(has, source.columns)
    for group in range(table.num_row_groups):
        # A reader of all groups keeps something of each: 26 bytes a row, measured.
        for batch in table.iter_batches(
            _ROWS_TOGETHER, row_groups=[group], columns=columns, use_threads=False
        ):
            yield from _as_rows(batch, shown, needed.carrier)


def _arrow(source: Source, file: io.RawIOBase, needed: Needed) -> Iterator[Row]:
    reader = pyarrow.ipc.open_file(pa.PythonFile(file, mode="r"))
    has = reader.schema.names
    shown, columns = needed.of(has, source.columns), needed.read(has, source.columns)
    for number in range(reader.num_record_batches):
        batch = reader.get_batch(number)
        for start in range(0, batch.num_rows, _ROWS_TOGETHER):
            some = batch.slice(start, _ROWS_TOGETHER).select(columns)
            yield from _as_rows(some, shown, needed.carrier)


def _as_rows(batch: pa.RecordBatch, shown: Sequence[str], carrier: Carrier) -> Iterator[Row]:
    columns = [_values(batch.column(name)) for name in shown]
    for index in range(batch.num_rows):
        carrier.look_at(batch, index)
        yield {name: column[index] for name, column in zip(shown, columns, strict=True)}


def _values(column: pa.Array) -> list[Any]:
    """Its values in Python. Python's times have microseconds, so the rest of nanoseconds goes."""
    type_ = in_microseconds(column.type)
    found = column if type_ == column.type else column.cast(type_, safe=False)
    values: list[Any] = found.to_pylist()
    return values


def in_microseconds(type_: pa.DataType) -> pa.DataType:
    """The type with times that Python has."""
    return with_leaves(type_, _time_in_microseconds)


def _time_in_microseconds(type_: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(type_) and type_.unit == "ns":
        return pa.timestamp("us", type_.tz)
    if pa.types.is_duration(type_) and type_.unit == "ns":
        return pa.duration("us")
    return type_


def _csv(source: Source, file: io.RawIOBase, needed: Needed) -> Iterator[Row]:
    csv.field_size_limit(MAX_OBJECT_BYTES)
    lines = io.TextIOWrapper(io.BufferedReader(file, _CHUNK_BYTES), "utf-8", newline="")
    reader = csv.reader(lines, strict=True)
    filled = _filled(reader)
    names = next(filled, None)
    if names is None:
        return
    names[0] = names[0].removeprefix(_BYTE_ORDER_MARK)
    needed.of(names, source.columns)
    for values in filled:
        if len(values) != len(names):
            raise UnreadableError(
                f"its line {reader.line_num} has {len(values)} values, and its head {len(names)}"
            )
        yield dict(zip(names, values, strict=True))


def _filled(reader: Any) -> Iterator[list[str]]:
    """The lines that are not empty. One that cannot be read is named by where it begins."""
    while True:
        begin = reader.line_num + 1
        try:
            values = next(reader, None)
        except csv.Error:
            raise UnreadableError(f"what begins in its line {begin} is no CSV") from None
        if values is None:
            return
        if values:
            yield values


def _jsonl(source: Source, file: io.RawIOBase, needed: Needed) -> Iterator[Row]:
    is_first = True
    for number, line in enumerate(io.BufferedReader(file, _CHUNK_BYTES), start=1):
        if not line.strip():
            continue
        try:
            row = msgspec.json.decode(line.removeprefix(b"\xef\xbb\xbf"))
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise UnreadableError(f"its line {number} is no JSON") from None
        if not isinstance(row, dict):
            raise UnreadableError(f"its line {number} is no JSON object")
        if is_first:
            needed.of(list(row), source.columns)
            is_first = False
        yield row


def _text(source: Source, file: io.RawIOBase, needed: Needed) -> Iterator[Row]:
    needed.of(("text", *_OF_OBJECT), source.columns)
    yield {**_of_object(source), "text": _whole(source, file).decode().removeprefix("\ufeff")}


def _image(source: Source, file: io.RawIOBase, needed: Needed) -> Iterator[Row]:
    needed.of(("image", *_OF_OBJECT), source.columns)
    whole = _whole(source, file)
    body = base64.b64encode(whole).decode()
    yield {
        **_of_object(source),
        "image": f"data:image/{_image_type(source, whole)};base64,{body}",
    }


def _image_type(source: Source, whole: bytes) -> str:
    for mark, kind in _IMAGE_MARKS.items():
        if whole.startswith(mark):
            return kind
    _, dot, ending = source.key.rpartition("/")[2].rpartition(".")
    if not dot or not ending.isalnum():
        raise UnreadableError("it is no PNG, JPEG, GIF or WebP, and its name says no other")
    return _IMAGE_TYPES.get(ending.lower(), ending.lower())


_OF_OBJECT = ("url", "name", "bytes")


def _of_object(source: Source) -> Row:
    """What every row that is an object says of it."""
    return {
        "url": source.name,
        "name": source.key.rpartition("/")[2],
        "bytes": source.size,
    }


def _whole(source: Source, file: io.RawIOBase) -> bytes:
    if source.size > MAX_OBJECT_BYTES:
        raise UnreadableError(f"it has more than {MAX_OBJECT_BYTES} bytes, too many for a row")
    return file.readall() or b""


_READERS: dict[str, Callable[[Source, io.RawIOBase, Needed], Iterator[Row]]] = {
    "parquet": _parquet,
    "arrow": _arrow,
    "csv": _csv,
    "jsonl": _jsonl,
    "text": _text,
    "image": _image,
}
