import json
from pathlib import Path
from typing import Any

import pandas as pd  # type: ignore[import-untyped]  # its stubs are a package of their own
import pytest

from batchyard.rows import Records, require_free, rows_of
from shared.errors import InvalidInputError


def test_dictionaries_get_the_answers_in_their_order(tmp_path: Path) -> None:
    answers = tmp_path / "0"
    answers.write_text('{"answer": "A"}\n{"answer": "B"}\n')
    rows = Records([{"n": 1}, {"n": 2, "more": "ü"}])

    sent = [json.loads(line) for line in rows.file(tmp_path).read_text().splitlines()]
    found, count = rows.joined([answers])

    assert sent == [{"n": 1}, {"n": 2, "more": "ü"}]
    assert found == [{"n": 1, "answer": "A"}, {"n": 2, "more": "ü", "answer": "B"}]
    assert count == 2
    assert rows.names == ["n", "more"]


def test_a_path_is_sent_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text('{"n": 1}\n\n{"n": 2}\n')

    rows = rows_of(str(path))

    assert rows.file(tmp_path) == path
    assert rows.count == 2


@pytest.mark.parametrize("text", ["[1]", "no", '{"n": '])
def test_lines_that_are_no_objects_are_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text(f'{{"n": 1}}\n{text}\n')

    with pytest.raises(InvalidInputError, match="line 2"):
        rows_of(path)


@pytest.mark.parametrize("data", [5, "/nowhere/x.csv", __file__, [1], {"a": [1]}])
def test_what_has_no_rows_is_refused(data: Any) -> None:
    with pytest.raises(InvalidInputError):
        rows_of(data)


@pytest.mark.parametrize("value", [{"a secret"}, float("nan"), "a secret \ud800"])
def test_a_value_that_is_no_json_is_named_by_its_row_and_not_shown(
    tmp_path: Path, value: object
) -> None:
    with pytest.raises(InvalidInputError, match="Row 1: the value of 'n'") as raised:
        Records([{"n": 1}, {"id": 7, "n": value}]).file(tmp_path)

    assert "secret" not in str(raised.value)


def test_a_table_of_a_derived_class_is_one() -> None:
    class Posts(pd.DataFrame):  # type: ignore[misc]  # pandas has no types here
        pass

    assert rows_of(Posts({"text": ["a", "b"]})).count == 2


def test_new_columns_replace_none() -> None:
    require_free(["text"], ["answer"])
    with pytest.raises(InvalidInputError, match="'answer' already"):
        require_free(["answer", "text"], ["answer", "error"])
