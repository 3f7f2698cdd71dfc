"""What a result adds to its row."""

import json
from typing import Any

from shared.pipeline.answers import Answers, new_columns
from shared.pipeline.declaration import Call
from shared.pipeline.stepping import Failed, Item

_CHAT = "/v1/chat/completions"
_SCHEMA = {
    "type": "object",
    "properties": {"label": {"type": "string"}, "score": {"type": "integer"}},
    "required": ["label"],
}


def _call(endpoint: str = _CHAT, **changes: Any) -> Call:
    return Call.model_validate({"endpoint": endpoint, "template": {"model": "tiny"}, **changes})


def _line(body: object, status: int = 200) -> bytes:
    response = {"status_code": status, "request_id": "r", "body": body}
    return json.dumps({"custom_id": "a", "response": response, "error": None}).encode()


def _said(text: str) -> bytes:
    return _line({"choices": [{"message": {"content": text}, "finish_reason": "stop"}]})


_ITEM = Item("a", {"text": "t", "title": "x"})


def test_the_answer_is_a_column_beside_the_others() -> None:
    found = Answers(2, _call(answer="summary")).read(_ITEM, _said("short"))

    assert found == Item("a", {"text": "t", "title": "x", "summary": "short"})


def test_only_what_is_carried_goes_on() -> None:
    found = Answers(2, _call(carry=["title"])).read(_ITEM, _said("short"))

    assert found == Item("a", {"title": "x", "answer": "short"})


def test_fields_of_the_schema_are_columns() -> None:
    call = _call(schema=_SCHEMA)

    found = Answers(2, call).read(_ITEM, _said('{"label": "good", "score": 3}'))

    assert new_columns(call) == ["answer", "label", "score"]
    assert isinstance(found, Item)
    assert (found.columns["label"], found.columns["score"]) == ("good", 3)


def test_a_row_whose_answer_is_another_ends_there() -> None:
    found = Answers(2, _call(schema=_SCHEMA)).read(_ITEM, _said("no json"))

    assert isinstance(found, Failed)
    assert (found.id, found.stage, found.code) == ("a", 2, "invalid_answer")


def test_a_failed_request_ends_there_with_its_reason() -> None:
    body = {"error": {"code": "too_long", "message": "Too long."}}

    found = Answers(2, _call()).read(_ITEM, _line(body, 400))

    assert found == Failed("a", 2, "too_long", "Too long.")


def test_an_embedding_is_a_column() -> None:
    call = _call("/v1/embeddings")

    found = Answers(2, call).read(_ITEM, _line({"data": [{"embedding": [0.5, 1.0]}]}))

    assert new_columns(call) == ["embedding"]
    assert isinstance(found, Item)
    assert found.columns["embedding"] == [0.5, 1.0]


def test_what_else_a_model_says_is_a_column_as_a_whole() -> None:
    body = {"data": [{"label": "x"}]}

    found = Answers(2, _call("/classify")).read(_ITEM, _line(body))

    assert isinstance(found, Item)
    assert found.columns["response"] == body


def test_a_row_whose_answer_has_half_of_a_surrogate_pair_ends_there() -> None:
    found = Answers(2, _call(schema=_SCHEMA)).read(_ITEM, _said(r'{"label": "good \ud83d"}'))

    # As a row that goes on, it could not be handed on, and its pipeline would never end.
    assert isinstance(found, Failed)
    assert found.message == (
        "The answer: the answer.label has half of a surrogate pair, which is no character."
    )
