"""What a call gets: an answer of the engine, or why there is none. Pure."""

import json
from http import HTTPStatus
from typing import Any, NamedTuple

from shared.errors import (
    AuthenticationError,
    BatchyardError,
    ConflictError,
    InvalidInputError,
    LimitError,
    NotFoundError,
    PermissionDeniedError,
    TooLargeError,
)

_STATUSES: tuple[tuple[type[BatchyardError], HTTPStatus], ...] = (
    (AuthenticationError, HTTPStatus.UNAUTHORIZED),
    (PermissionDeniedError, HTTPStatus.FORBIDDEN),
    (InvalidInputError, HTTPStatus.BAD_REQUEST),
    (NotFoundError, HTTPStatus.NOT_FOUND),
    (ConflictError, HTTPStatus.CONFLICT),
    (TooLargeError, HTTPStatus.REQUEST_ENTITY_TOO_LARGE),
    (LimitError, HTTPStatus.TOO_MANY_REQUESTS),
)


class Answer(NamedTuple):
    """An HTTP status, and the body that goes with it."""

    status: int
    body: Any

    @property
    def is_error(self) -> bool:
        """Whether asking again may help."""
        return self.status >= HTTPStatus.BAD_REQUEST


def answer_in(line: bytes) -> tuple[str, Answer]:
    """The custom id of a result line, and its answer."""
    result = json.loads(line)
    if response := result.get("response"):
        return result["custom_id"], Answer(response["status_code"], response["body"])
    error = result.get("error") or {}
    text = error.get("message", "The batch ended before this call was answered.")
    return result["custom_id"], unanswered(text, code=error.get("code"))


def unanswered(
    text: str, *, code: str | None = None, status: int = HTTPStatus.SERVICE_UNAVAILABLE
) -> Answer:
    """An error in OpenAI's envelope, from which the SDK makes its exception."""
    kind = "server_error" if status >= HTTPStatus.INTERNAL_SERVER_ERROR else "invalid_request_error"
    error = {"message": text, "type": kind, "param": None, "code": code}
    return Answer(status, {"error": error})


def refused(error: BatchyardError) -> Answer:
    """What each call of a batch gets that could not be made."""
    found = (status for kind, status in _STATUSES if isinstance(error, kind))
    status = next(found, HTTPStatus.SERVICE_UNAVAILABLE)
    return unanswered(str(error), code=getattr(error, "code", None) or None, status=status)
