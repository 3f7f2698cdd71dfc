import json
from typing import Any

import pytest

from worker.engine_errors import Answer
from worker.engine_results import failure
from worker.known_failures import explained

_FORM = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
_TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def _failed(message: str) -> Answer:
    return failure(500, {"message": message, "type": "InternalServerError", "code": 500})


def _error(answer: Answer) -> dict[str, Any]:
    error: dict[str, Any] = json.loads(answer[1])["error"]
    return error


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"stop": "\ud83d"}, "stop"),
        ({"stop": ["a", "\udfff"]}, "stop.1"),
        ({"bad_words": ["b\ud83d"]}, "bad_words.0"),
        ({"stop_sequences": ["\ud83d"]}, "stop_sequences.0"),
    ],
)
def test_half_a_surrogate_pair_is_the_requests_own_fault(body: Any, param: str) -> None:
    answer = explained(body, _failed(""))

    assert (answer[0], _error(answer)["param"]) == (400, param)
    assert "surrogate" in _error(answer)["message"]


def test_a_picture_that_is_not_in_base64_is_the_requests_own_fault() -> None:
    good, bad = ({"url": f"data:image/png{form},abc"} for form in (";base64", ""))
    parts = [{"type": "image_url", "image_url": url} for url in (good, bad)]
    body = {"messages": [{"role": "user", "content": parts}]}
    failed = failure(501, {"message": "Only base64 data URLs are supported for now."})

    answer = explained(body, failed)

    assert (answer[0], _error(answer)["param"]) == (400, "messages.0.content.1.image_url")
    assert ";base64," in _error(answer)["message"]


@pytest.mark.parametrize(
    ("body", "names"),
    [
        ({"response_format": _FORM, "allowed_token_ids": [5]}, "response_format, allowed_token_i"),
        ({"structured_outputs": {"choice": ["a"]}, "bad_words": ["a"]}, "structured_outputs, bad"),
        ({"tools": [_TOOL], "stop_token_ids": [1], "min_tokens": 9}, "tools, min_tokens, stop_to"),
        ({"text": {"format": {**_FORM, "schema": {}}}, "logit_bias": {"5": -100}}, "text, logit"),
    ],
)
def test_what_leaves_no_token_to_a_grammar_is_named(body: Any, names: str) -> None:
    answer = explained(body, _failed("Internal server error"))

    assert answer[0] == 400
    assert names in _error(answer)["message"]
    assert _error(answer)["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        # A failure of the engine is one whatever the request asks for.
        ({"response_format": _FORM, "allowed_token_ids": [5]}, "EngineCore encountered an issue."),
        ({"response_format": _FORM}, "Internal server error"),
        ({"allowed_token_ids": [5]}, "Internal server error"),
        ({"response_format": _FORM, "min_tokens": 0}, "Internal server error"),
        ({"stop": ["\U0001f600", 5], "messages": []}, ""),
        (["\ud83d"], ""),
    ],
)
def test_any_other_failure_stays_one(body: Any, message: str) -> None:
    failed = _failed(message)

    assert explained(body, failed) is failed


def test_an_answer_stays_as_it_is() -> None:
    answer = (200, b"{}")

    assert explained({"stop": "\ud83d"}, answer) is answer
