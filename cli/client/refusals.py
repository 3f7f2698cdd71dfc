"""What a gateway's error answer means for the caller. Pure."""

import json
from collections.abc import Mapping
from http import HTTPStatus

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

_MAX_SHOWN = 300


def refusal(status: int, body: bytes, headers: Mapping[str, str]) -> BatchyardError:  # noqa: PLR0911  # one case per status, as flat as a table
    """The error that an answer with a status of 400 or more stands for."""
    message, code, kind = _said(body, status)
    match status:
        case HTTPStatus.UNAUTHORIZED:
            return AuthenticationError(
                f"{message} Give the right key by OPENAI_API_KEY or `batchyard context add`.",
                code=code,
            )
        case HTTPStatus.FORBIDDEN:
            return PermissionDeniedError(message, code=code)
        case HTTPStatus.NOT_FOUND:
            return NotFoundError(message, code=code)
        case HTTPStatus.CONFLICT:
            return ConflictError(message)
        case HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
            return TooLargeError(message)
        case HTTPStatus.TOO_MANY_REQUESTS:
            return LimitError(
                message, kind=kind or "requests", code=code or "", wait_seconds=_wait(headers)
            )
        case HTTPStatus.REQUEST_TIMEOUT:
            return TransientError(message)
        case _ if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            return TransientError(f"The gateway has a problem ({status}): {message}")
        case _:
            return InvalidInputError(message, code=code)


def _said(body: bytes, status: int) -> tuple[str, str | None, str | None]:
    """The message, code and type of OpenAI's envelope, or whatever a proxy has answered."""
    try:
        error = json.loads(body)["error"]
        message, param = str(error["message"]), error.get("param")
        if param and param not in message:
            message = f"{message} (in '{param}')"
        return message, error.get("code"), error.get("type")
    except (ValueError, KeyError, TypeError, AttributeError):
        text = " ".join(body.decode(errors="replace").split())[:_MAX_SHOWN]
        return f"The answer is {status}: {text or 'without a text'}.", None, None


def _wait(headers: Mapping[str, str]) -> float | None:
    """After how many seconds the same call may work; None if waiting alone does not help."""
    if headers.get("x-should-retry") == "false":
        return None
    try:
        return float(headers.get("retry-after-ms", "")) / 1000
    except ValueError:
        pass
    try:
        return float(headers.get("retry-after", "1"))
    except ValueError:
        return 1.0
