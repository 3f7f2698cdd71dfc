from pathlib import Path

import pandas as pd  # type: ignore[import-untyped]  # its stubs are a package of their own
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batchyard.frames import of_arrow, of_file, of_pandas, of_polars
from shared.errors import InvalidInputError


def test_the_same_rows_are_the_same_bytes_however_they_lie_in_memory(tmp_path: Path) -> None:
    whole = pa.table({"n": range(100_000)})
    in_pieces = pa.concat_tables([whole.slice(0, 70_001), whole.slice(70_001)])
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()

    one = of_arrow(whole).file(tmp_path / "a")
    other = of_arrow(in_pieces.replace_schema_metadata({"x": "y"})).file(tmp_path / "b")

    assert one.read_bytes() == other.read_bytes()
    assert pq.read_table(one).equals(whole)


def test_answers_in_several_files_stand_beside_the_rows(tmp_path: Path) -> None:
    pq.write_table(pa.table({"answer": ["A"]}), tmp_path / "0")
    pq.write_table(pa.table({"answer": pa.array([None], pa.string())}), tmp_path / "1")
    rows = of_arrow(pa.table({"n": [1, 2]}))

    found, count = rows.joined([tmp_path / "0", tmp_path / "1"])

    assert found.to_pylist() == [{"n": 1, "answer": "A"}, {"n": 2, "answer": None}]
    assert rows.joined([tmp_path / "0"]) == (None, 1)
    assert count == 2


def test_an_answer_may_have_any_name() -> None:
    frame = pd.DataFrame({"n": [1]}, index=[7])

    found = of_pandas(frame).join(pa.table({"self": ["A"]}))

    assert (list(found.index), list(found.columns), found["self"].tolist()) == (
        [7],
        ["n", "self"],
        ["A"],
    )
    assert list(frame.columns) == ["n"]


def test_values_of_csv_are_texts(tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    path.write_text('\ufeffid,text\n007,"a\nb"\n\n008,\n')

    assert of_file(path).join(pa.table({})).to_pylist() == [
        {"id": "007", "text": "a\nb"},
        {"id": "008", "text": ""},
    ]


def test_a_text_in_csv_may_be_as_long_as_the_gateway_takes_it(tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    path.write_text("id,text\n1," + "x" * 200_000)

    assert of_file(path).count == 1


@pytest.mark.parametrize("name", ["in.csv", "in.parquet", "in.arrow"])
def test_a_file_that_is_something_else_is_named(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text('a,b\n1,2\n3,"a secret\n')

    with pytest.raises(InvalidInputError, match=name) as raised:
        of_file(path)

    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"a,b\n1,2\n\n3\n", "line 4 has 1 values, and there are 2"),
        (b"a,b\n1,2,3\n", "line 2 has 3 values"),
        ("a\nä\n".encode("latin-1"), "it is not UTF-8"),
        (b"a,b,a\n1,2,3\n", "two columns 'a'"),
    ],
)
def test_what_is_wrong_with_a_csv_file_is_named(tmp_path: Path, text: bytes, words: str) -> None:
    path = tmp_path / "in.csv"
    path.write_bytes(text)

    with pytest.raises(InvalidInputError, match=words):
        of_file(path)


@pytest.mark.parametrize("name", ["in.parquet", "in.arrow"])
def test_two_columns_of_one_name_in_a_file_are_named(tmp_path: Path, name: str) -> None:
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    pq.write_table(table, tmp_path / "in.parquet")
    with pa.ipc.new_file(str(tmp_path / "in.arrow"), table.schema) as file:
        file.write_table(table)

    with pytest.raises(InvalidInputError, match="two columns 'a'"):
        of_file(tmp_path / name)


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        (pd.DataFrame([[1, 2]], columns=["my text", "my text"]), "two columns 'my text'"),
        (pd.DataFrame([[1, 2]], columns=["1", 1]), "two columns '1'"),
        (pd.DataFrame({"a": [1], "my text": [object()]}), "column 'my text' has"),
        (pd.DataFrame({"a": [1, 2], "my text": [1, "a secret"]}), "column 'my text' has"),
        (pd.DataFrame({"a": pd.arrays.SparseArray([0, 1])}), "column 'a' has"),
        (pd.DataFrame({"a": [2**70]}), "column 'a' has"),
        (pd.DataFrame({("a", "b"): [1]}), "several levels"),
    ],
)
def test_a_column_that_cannot_be_sent_is_named(frame: pd.DataFrame, words: str) -> None:
    with pytest.raises(InvalidInputError, match=words) as raised:
        of_pandas(frame)

    assert "secret" not in str(raised.value)


def test_types_that_no_file_holds_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="'a' has Python's own objects"):
        of_polars(pl.DataFrame({"a": pl.Series([object()], dtype=pl.Object)}))
    with pytest.raises(InvalidInputError, match="a type that Arrow has not"):
        of_polars(pl.DataFrame({"a": pl.Series([1], dtype=pl.Int128)}))
    with pytest.raises(InvalidInputError, match="Parquet"):
        of_polars(pl.DataFrame({"a": [{}]})).file(tmp_path)
