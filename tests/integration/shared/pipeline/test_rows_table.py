"""Tables of rows whose columns are JSON, made by the process that makes them."""

import io
import secrets
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shared.dataset.frames import Done
from shared.table.answer_shape import Shape
from shared.table.frames import FileEnd, RowsJob
from shared.table.output import Column, Format, RowsTable
from shared.table.writing import written


async def _files(rows: list[dict[str, Any]], table: RowsTable, **limits: int) -> list[bytes]:
    body = b"".join(msgspec.json.encode(row) + b"\n" for row in rows)

    async def read(_: int, start: int, end: int) -> bytes:
        return body[start:end]

    files, file = list[bytes](), b""
    async for said in written(RowsJob(table, [len(body)], **limits), read):
        match said:
            case bytes():
                file += said
            case FileEnd():
                files.append(file)
                file = b""
            case Done():
                assert said.problems == 0
            case _:
                pytest.fail(said.message)
    return files


async def _table(rows: list[dict[str, Any]], **changes: Any) -> pa.Table:
    columns = [Column(name, name) for name in rows[0]]
    files = await _files(rows, RowsTable("parquet", columns, **changes))
    return pa.concat_tables([pq.read_table(io.BytesIO(file)) for file in files])


@pytest.mark.parametrize(
    ("values", "type_"),
    [
        ([1, None], pa.int64()),
        ([1, 2.5], pa.float64()),
        ([True, None], pa.bool_()),
        (["a", None], pa.string()),
        ([None, None], pa.string()),
        ([1, "a"], pa.string()),
        ([{}, {}], pa.string()),
        ([2**70, 1], pa.string()),
        ([[1], [2.5]], pa.list_(pa.float64())),
        ([2**60 + 1, 0.5], pa.string()),
        ([{"n": [2**60 + 1]}, {"n": [0.5]}], pa.string()),
        ([{f"key-{n}": n for n in range(150)}, {f"key{n}": n for n in range(60)}], pa.string()),
        (
            [{"id": 2**60 + 1, "x": 1}, {"id": 1, "x": 0.5}],
            pa.struct([("id", pa.int64()), ("x", pa.float64())]),
        ),
        ([{"a": 1}, {"b": "x"}], pa.struct([("a", pa.int64()), ("b", pa.string())])),
    ],
)
async def test_a_column_has_the_type_that_its_values_have_in_common(
    values: list[Any], type_: pa.DataType
) -> None:
    # More rows than are looked at together lie between the two values.
    rows = [{"n": values[0]}] * 1500 + [{"n": values[1]}]

    table = await _table(rows)

    field, found = table.schema.field("n").type, table["n"].to_pylist()
    assert (field, len(found)) == (type_, 1501)
    if pa.types.is_string(type_):
        given = [one if one is None or isinstance(one, str) else _json(one) for one in values]
        assert (found[0], found[-1]) == (given[0], given[1])


async def test_a_long_integer_is_rounded_where_a_schema_wants_a_fraction() -> None:
    number = Shape("number")
    shapes = {
        "one": number,
        "some": Shape("list", items=number),
        "deep": Shape("object", fields={"n": number, "id": Shape("integer")}),
    }
    odd = 2**60 + 1
    rows: list[dict[str, Any]] = [
        {"one": odd, "some": [odd, 1], "deep": {"n": odd, "id": odd}},
        {"one": 10**400, "some": None, "deep": None},
    ]

    table = await _table(rows, shapes=shapes)

    assert table["one"].to_pylist() == [2.0**60, float("inf")]
    assert table["some"].to_pylist() == [[2.0**60, 1.0], None]
    assert table["deep"].to_pylist() == [{"n": 2.0**60, "id": odd}, None]


async def test_rows_with_ever_other_keys_take_no_more_memory() -> None:
    rows = [{"map": {f"{row}-{n}": n for n in range(50)}} for row in range(4000)]

    table = await _table(rows)

    assert table.schema.field("map").type == pa.string()
    assert table["map"][-1].as_py().startswith('{"3999-0":0,')


async def test_what_is_known_of_a_column_decides_its_type() -> None:
    rows: list[dict[str, Any]] = [
        {"v": [0.5, 1.0], "said": None, "raw": {"a": []}},
        {"v": None, "said": 3, "raw": [1]},
    ]
    shapes = {"said": Shape("number", is_nullable=True), "raw": Shape("json", is_nullable=True)}

    table = await _table(rows, shapes=shapes, embeddings=["v"])

    types = {field.name: field.type for field in table.schema}
    assert types == {
        "v": pa.list_(pa.float32(), 2),
        "said": pa.float64(),
        "raw": pa.string(),
    }
    assert table["said"].to_pylist() == [None, 3.0]
    assert table["raw"].to_pylist() == ['{"a":[]}', "[1]"]


@pytest.mark.parametrize("format_", ["parquet", "csv", "jsonl"])
async def test_a_file_ends_once_it_is_long_enough(format_: Format) -> None:
    rows = [{"n": number, "text": secrets.token_hex(250)} for number in range(3000)]
    table = RowsTable(format_, [Column("number", "n"), Column("text", "text")])

    files = await _files(rows, table, file_bytes=100_000)

    assert len(files) > 1
    if format_ == "parquet":
        tables = pa.concat_tables([pq.read_table(io.BytesIO(file)) for file in files])
        assert tables["number"].to_pylist() == list(range(3000))


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
