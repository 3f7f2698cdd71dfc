"""Which columns a pipeline's table has, and what is known of their types."""

from typing import Any

import pytest

from shared.errors import InvalidInputError
from shared.pipeline.declaration import Declaration
from shared.pipeline.plan import check
from shared.pipeline.table import rows_table
from shared.table.answer_shape import Shape
from shared.table.output import Column, RowsTable

_CHAT = "/v1/chat/completions"
_SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
_ASK = {"endpoint": _CHAT, "template": {"model": "tiny", "messages": []}, "schema": _SCHEMA}
_EMBED = {"endpoint": "/v1/embeddings", "template": {"model": "minilm", "input": "{{ text }}"}}


def _wanted(output: dict[str, Any] | None, *stages: dict[str, Any]) -> RowsTable | None:
    declared = {
        "input": {"file_id": "file-1", "columns": ["text"]},
        "stages": list(stages) or [{"call": _ASK}, {"call": _EMBED}],
        "output": output,
    }
    declaration = Declaration.model_validate(declared)
    columns = check(declaration, {"tiny": {_CHAT}, "minilm": {"/v1/embeddings"}})
    return rows_table(declaration, columns, ["s3://bucket/acme/"])


def test_a_table_has_all_columns_in_order_with_the_types_that_are_known() -> None:
    wanted = _wanted({})

    assert wanted is not None
    names = [column.name for column in wanted.columns]
    assert names == ["custom_id", "text", "answer", "n", "embedding"]
    assert wanted.shapes.keys() == {"custom_id", "answer", "n"}
    assert wanted.shapes["n"] == Shape("integer")
    assert wanted.embeddings == ["embedding"]


def test_a_column_that_was_dropped_and_made_again_has_its_new_type() -> None:
    split = {"split": {"column": "text", "tokens": 5, "into": "n"}}
    dropping = {**_ASK, "carry": ["text"], "schema": None}
    vectors = {**_EMBED, "answer": "answer", "carry": ["text"]}

    other = _wanted({}, {"call": _ASK}, {"call": dropping}, split)
    vector = _wanted({}, {"call": _ASK}, {"call": vectors})
    text = _wanted({}, {"call": _EMBED}, {"call": {**dropping, "answer": "embedding"}})

    assert other is not None
    assert vector is not None
    assert text is not None
    assert other.shapes.keys() == {"custom_id", "answer"}
    assert (vector.embeddings, set(vector.shapes)) == (["answer"], {"custom_id"})
    assert (text.embeddings, set(text.shapes)) == ([], {"custom_id", "embedding"})


def test_columns_may_be_named() -> None:
    wanted = _wanted({"columns": {"id": "custom_id", "vector": "embedding"}, "format": "jsonl"})

    assert wanted is not None
    assert wanted.columns == [Column("id", "custom_id"), Column("vector", "embedding")]
    assert wanted.shapes.keys() == {"custom_id"}
    assert _wanted(None) is None


@pytest.mark.parametrize(
    ("output", "param"),
    [
        ({"columns": ["nothing"]}, "output.columns"),
        ({"columns": ["text", "text"]}, "output.columns"),
        ({"columns": {"": "text"}}, "output.columns"),
        ({"destination": "s3://bucket/other/"}, "output.destination"),
    ],
)
def test_what_cannot_be_is_refused_with_its_place(output: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        _wanted(output)

    assert caught.value.param == param
