import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.engine_results import failure, from_http, refusal, success

JSON = b"application/json"


def _error(body: bytes) -> dict[str, Any]:
    error: dict[str, Any] = json.loads(body)["error"]
    return error


@given(st.dictionaries(st.text(), st.text() | st.lists(st.text())))
def test_an_answer_stays_the_same_json_in_ascii_on_one_line(answer: Any) -> None:
    status, body = success(json.dumps(answer, ensure_ascii=False))

    assert status == 200
    assert body.isascii()
    assert len(body.decode().splitlines()) <= 1
    assert json.loads(body) == answer


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error": {"message": "too long", "type": "t"}}', "too long"),
        (b'{"detail": "Not Found"}', "Not Found"),
        (b'{"error": "no"}', "no"),
        (b"[]", "The engine gave no reason."),
        (b"<html>", "The engine gave no reason."),
    ],
)
def test_an_error_of_any_form_becomes_openais(body: bytes, message: str) -> None:
    status, result = from_http(404, body, JSON)

    assert status == 404
    assert set(_error(result)) == {"message", "type", "param", "code"}
    assert _error(result)["message"] == message


def test_an_error_that_names_no_type_has_that_of_its_status() -> None:
    assert _error(from_http(400, b"{}", JSON)[1])["type"] == "invalid_request_error"
    assert _error(from_http(503, b"{}", JSON)[1])["type"] == "server_error"


def test_an_answer_that_is_not_json_is_an_error_of_the_request() -> None:
    status, body = from_http(200, b"data: {}\n\n", b"text/event-stream")

    assert status == 400
    assert "not JSON" in _error(body)["message"]


def test_a_refusal_names_the_place_and_an_error_keeps_openais_fields_only() -> None:
    status, body = refusal("No.", status=404, param="url", code="c")
    _, other = failure(500, {"message": "m", "type": "t", "stack": "secret"})

    assert status == 404
    assert _error(body) == {
        "message": "No.",
        "type": "invalid_request_error",
        "param": "url",
        "code": "c",
    }
    assert _error(other) == {"message": "m", "type": "t", "param": None, "code": None}
