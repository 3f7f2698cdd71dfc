import json

import pytest

from gateway.live_answers import envelope, error_event


@pytest.mark.parametrize(
    ("status", "body", "error"),
    [
        (
            400,
            {"error": {"message": "Bad.", "type": "BadRequestError", "param": "n", "code": 400}},
            {"message": "Bad.", "type": "invalid_request_error", "param": "n", "code": None},
        ),
        (
            500,
            {"error": {"message": "Broke.", "code": "odd"}},
            {"message": "Broke.", "type": "server_error", "param": None, "code": "odd"},
        ),
    ],
)
def test_an_engines_error_has_openais_form(
    status: int, body: object, error: dict[str, str | None]
) -> None:
    assert json.loads(envelope(status, json.dumps(body).encode())) == {"error": error}


@pytest.mark.parametrize("body", [b"", b"Internal Server Error", b"[]", b'{"error": "x"}'])
def test_an_error_without_words_says_so(body: bytes) -> None:
    assert "gave no reason" in json.loads(envelope(500, body))["error"]["message"]


def test_a_broken_stream_ends_with_one_whole_event() -> None:
    event = error_event("/v1/chat/completions", is_inside=True)

    assert event.startswith(b"\n\ndata: ")
    assert event.endswith(b"\n\n")
    assert json.loads(event.strip().removeprefix(b"data: "))["error"]["code"] == "engine_died"
    assert error_event("/v1/responses", is_inside=False).startswith(b"event: error\ndata: ")
