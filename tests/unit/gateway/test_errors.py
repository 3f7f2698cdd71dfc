import pytest

from gateway.errors import answer
from shared.errors import (
    AuthenticationError,
    ConflictError,
    InvalidInputError,
    InvalidTransitionError,
    LimitError,
    NotFoundError,
    SetupError,
    TooLargeError,
    TransientError,
)


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (InvalidInputError("m", param="p", code="c"), 400, "invalid_request_error"),
        (AuthenticationError("m", code="c"), 401, "invalid_request_error"),
        (NotFoundError("m", param="p", code="c"), 404, "invalid_request_error"),
        (ConflictError("m"), 409, "invalid_request_error"),
        (InvalidTransitionError("b", "e", "s"), 409, "invalid_request_error"),
        (TooLargeError("m"), 413, "invalid_request_error"),
        (LimitError("m", kind="tokens", code="c"), 429, "tokens"),
        (TransientError("m"), 503, "server_error"),
        (SetupError("m"), 500, "server_error"),
        (ZeroDivisionError("m"), 500, "server_error"),
    ],
)
def test_every_blame_has_its_status(error: Exception, status: int, kind: str) -> None:
    found = answer(error)

    assert (found.status, found.body.type) == (status, kind)
    assert found.body.param == getattr(error, "param", None)
    assert found.body.code == getattr(error, "code", None)


@pytest.mark.parametrize("error", [TransientError("redis at 10.0.0.1"), ValueError("10.0.0.1")])
def test_what_is_wrong_inside_stays_inside(error: Exception) -> None:
    assert "10.0.0.1" not in answer(error).body.message


def test_clients_are_told_whether_to_come_back() -> None:
    assert answer(ConflictError("m")).headers == {"x-should-retry": "false"}
    assert answer(TransientError("m")).headers == {"retry-after": "5"}


@pytest.mark.parametrize(
    ("wait_seconds", "headers"),
    [
        (0.0061, {"retry-after": "1", "retry-after-ms": "7"}),
        (60, {"retry-after": "60", "retry-after-ms": "60000"}),
        (61, {"retry-after": "60", "x-should-retry": "false"}),
        (None, {"retry-after": "60", "x-should-retry": "false"}),
    ],
)
def test_only_a_short_wait_is_left_to_the_client(
    wait_seconds: float | None, headers: dict[str, str]
) -> None:
    error = LimitError("m", kind="requests", code="c", wait_seconds=wait_seconds)

    assert answer(error).headers == headers
