import json

import pytest

from cli.client.refusals import refusal
from shared.errors import (
    AuthenticationError,
    BatchyardError,
    ConflictError,
    InvalidInputError,
    LimitError,
    NotFoundError,
    PermissionDeniedError,
    TooLargeError,
    TransientError,
)


def _body(message: str = "Not so.") -> bytes:
    error = {"message": message, "type": "requests", "param": None, "code": "c"}
    return json.dumps({"error": error}).encode()


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, InvalidInputError),
        (401, AuthenticationError),
        (403, PermissionDeniedError),
        (404, NotFoundError),
        (409, ConflictError),
        (413, TooLargeError),
        (422, InvalidInputError),
        (429, LimitError),
        (500, TransientError),
        (503, TransientError),
    ],
)
def test_each_status_is_an_error_with_the_gateways_words(
    status: int, kind: type[BatchyardError]
) -> None:
    error = refusal(status, _body(), {})

    assert type(error) is kind
    assert "Not so." in str(error)


def test_a_refusal_names_the_field() -> None:
    error = {"message": "Invalid value: 'x'.", "type": "t", "param": "window", "code": None}

    text = str(refusal(400, json.dumps({"error": error}).encode(), {}))

    assert text == "Invalid value: 'x'. (in 'window')"


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, 1.0),
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "7", "retry-after-ms": "1500"}, 1.5),
        ({"retry-after": "60", "x-should-retry": "false"}, None),
        ({"retry-after": "tomorrow"}, 1.0),
    ],
)
def test_a_limit_says_when_to_try_again(headers: dict[str, str], seconds: float | None) -> None:
    error = refusal(429, _body(), headers)

    assert isinstance(error, LimitError)
    assert error.wait_seconds == seconds


@pytest.mark.parametrize("body", [b"", b"<html>Bad\nGateway</html>", b"[]", b'{"error": "x"}'])
def test_what_no_gateway_would_say_is_shown_in_one_line(body: bytes) -> None:
    text = str(refusal(404, body, {}))

    assert text.startswith("The answer is 404: ")
    assert "\n" not in text
