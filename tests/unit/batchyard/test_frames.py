from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batchyard.frames import of_arrow, of_file
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


def test_values_of_csv_are_texts(tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    path.write_text('\ufeffid,text\n007,"a\nb"\n\n008,\n')

    assert of_file(path).join(pa.table({})).to_pylist() == [
        {"id": "007", "text": "a\nb"},
        {"id": "008", "text": ""},
    ]


@pytest.mark.parametrize("name", ["in.csv", "in.parquet", "in.arrow"])
def test_a_file_that_is_something_else_is_named(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text('a,b\n1,2\n3,"a secret\n')

    with pytest.raises(InvalidInputError, match=name) as raised:
        of_file(path)

    assert "secret" not in str(raised.value)
