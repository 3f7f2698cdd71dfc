from typing import Any

import pytest
from pydantic import BaseModel

from batchyard.options import Options, require_known
from batchyard.requests import Template, body_of, columns_of, output_of, schema_of
from shared.errors import InvalidInputError

_SCHEMA = {"title": "The verdict!", "type": "object", "properties": {"label": {"type": "string"}}}


class Verdict(BaseModel):
    label: str


@pytest.mark.parametrize(
    ("template", "endpoint", "content"),
    [
        ("{{ a }}", "/v1/chat/completions", {"messages": [{"role": "user", "content": "{{ a }}"}]}),
        ("{{ a }}", "/v1/completions", {"prompt": "{{ a }}"}),
        ("{{ a }}", "/v1/embeddings", {"input": "{{ a }}"}),
        ("{{ a }}", "/v1/responses", {"input": "{{ a }}"}),
        ([{"role": "system"}], "/v1/chat/completions", {"messages": [{"role": "system"}]}),
        ({"input": "x", "seed": 1}, "/v1/responses", {"input": "x", "seed": 1}),
    ],
)
def test_a_template_is_a_text_messages_or_a_body(
    template: Template, endpoint: str, content: dict[str, Any]
) -> None:
    assert body_of(template, {"model": "m", "endpoint": endpoint}) == {**content, "model": "m"}


def test_more_fields_stand_beside_the_template() -> None:
    options: Options = {"model": "m", "body": {"max_tokens": 5}}

    assert body_of("x", options)["max_tokens"] == 5


def test_a_schema_is_what_the_engine_writes() -> None:
    form = body_of("x", {"model": "m", "schema": _SCHEMA})["response_format"]["json_schema"]
    of_responses = body_of("x", {"model": "m", "schema": Verdict, "endpoint": "/v1/responses"})

    assert form == {"name": "The_verdict_", "schema": _SCHEMA, "strict": True}
    assert of_responses["text"]["format"]["schema"] == {
        **Verdict.model_json_schema(),
        "additionalProperties": False,
    }


def test_a_pydantic_model_closes_its_schema_unless_it_takes_more() -> None:
    class Author(BaseModel):
        name: str

    class Post(BaseModel, extra="allow"):
        author: Author
        scores: dict[str, int]

    made = schema_of(Post)

    assert made is not None
    assert made["additionalProperties"] is True
    assert made["$defs"]["Author"]["additionalProperties"] is False
    assert made["properties"]["scores"]["additionalProperties"] == {"type": "integer"}


def test_a_body_that_names_its_own_form_keeps_it() -> None:
    own = {"messages": [], "response_format": {"type": "json_object"}}

    assert body_of(own, {"model": "m", "schema": Verdict})["response_format"] == {
        "type": "json_object"
    }


@pytest.mark.parametrize(
    ("template", "options", "said"),
    [
        ("x", {}, "model="),
        ("x", {"model": "m", "endpoint": "/v1/nothing"}, "/v1/chat/completions"),
        ("x", {"model": "m", "endpoint": "/v1/score"}, "whole body"),
    ],
)
def test_what_cannot_be_asked_is_refused_here(
    template: Template, options: Options, said: str
) -> None:
    with pytest.raises(InvalidInputError, match=said):
        body_of(template, options)


def test_columns_are_those_of_the_endpoint_and_the_schema() -> None:
    chat = columns_of({}, {"schema": Verdict, "prefix": "p_"})
    vectors = columns_of({}, {"endpoint": "/v1/embeddings"})

    assert list(chat.items())[:2] == [("p_answer", "answer"), ("p_label", "answer.label")]
    assert "p_custom_id" not in chat
    assert next(iter(vectors)) == "embedding"


def test_columns_that_are_named_are_the_only_ones() -> None:
    assert columns_of({}, {"columns": {"said": "answer"}}) == {"said": "answer"}
    assert columns_of({}, {"columns": "answer"}) == {"answer": "answer"}
    assert columns_of({}, {"columns": ["custom_id", "error"]}) == {
        "custom_id": "custom_id",
        "error": "error",
    }
    with pytest.raises(InvalidInputError, match=r"answer\.nothing"):
        columns_of({}, {"columns": ["answer.nothing"]})
    with pytest.raises(InvalidInputError, match="schema"):
        columns_of({}, {"schema": {"type": 5}})


def test_a_row_is_asked_again_only_where_that_is_said() -> None:
    assert "retries" not in output_of({}, {"schema": Verdict}, "parquet")
    assert output_of({}, {"schema": Verdict, "retries": 2}, "parquet")["retries"] == 2
    with pytest.raises(InvalidInputError, match="retries"):
        output_of({}, {"schema": Verdict, "retries": 11}, "parquet")


def test_rows_are_checked_by_a_column_that_says_what_failed() -> None:
    columns_of({}, {"columns": ["answer"], "check": True})
    columns_of({}, {"schema": Verdict, "columns": ["answer", "error_code"], "check": True})
    with pytest.raises(InvalidInputError, match="needs the column 'error'"):
        columns_of({}, {"schema": Verdict, "columns": ["answer"], "check": True})


def test_a_field_of_requests_is_no_option() -> None:
    with pytest.raises(InvalidInputError, match=r"'temperature'.*body"):
        require_known({"model": "m", "temperature": 1})
