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


def _wanted(output: dict[str, Any] | None) -> RowsTable | None:
    declared = {
        "input": {"file_id": "file-1", "columns": ["text"]},
        "stages": [{"call": _ASK}, {"call": _EMBED}],
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
