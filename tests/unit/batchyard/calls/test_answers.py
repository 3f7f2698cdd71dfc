import json

import pytest

from batchyard.calls.answers import answer_in, refused
from shared.errors import (
    AuthenticationError,
    BatchyardError,
    InvalidInputError,
    LimitError,
    PermissionDeniedError,
    TransientError,
)


def test_a_result_line_has_the_engines_status_and_body() -> None:
    line = {
        "custom_id": "a",
        "response": {"status_code": 400, "body": {"error": {"code": "x"}}},
        "error": None,
    }

    custom_id, answer = answer_in(json.dumps(line).encode())

    assert (custom_id, answer.status, answer.body) == ("a", 400, {"error": {"code": "x"}})
    assert answer.is_error


def test_a_row_that_never_ran_is_an_error_of_the_server() -> None:
    line = {"custom_id": "a", "response": None, "error": {"code": "batch_expired", "message": "m"}}

    _, answer = answer_in(json.dumps(line).encode())

    assert answer.status == 503
    assert answer.body["error"]["code"] == "batch_expired"


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (InvalidInputError("m", code="c"), 400),
        (AuthenticationError("m"), 401),
        (PermissionDeniedError("m"), 403),
        (LimitError("m", kind="requests", code="c"), 429),
        (TransientError("m"), 503),
    ],
)
def test_each_refusal_has_the_status_from_which_the_sdk_makes_its_exception(
    error: BatchyardError, status: int
) -> None:
    answer = refused(error)

    assert answer.status == status
    assert answer.body["error"]["message"] == "m"
