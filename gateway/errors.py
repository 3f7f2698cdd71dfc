"""Maps exceptions to answers: the status, OpenAI's envelope, and the headers for retries."""

import math
from collections.abc import Mapping
from http import HTTPStatus
from typing import NamedTuple

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.routing import Match

from gateway.access import response_headers
from gateway.fields import complaint
from gateway.live_answers import COLD, DIED
from gateway.openapi_errors import BROKEN, BUSY, damaged
from gateway.ui.error_page import error_page, is_for_people
from shared.errors import (
    AuthenticationError,
    BatchyardError,
    BrokenObjectError,
    ConflictError,
    DeadlineError,
    EngineDiedError,
    InvalidInputError,
    InvalidTransitionError,
    LimitError,
    NoEngineError,
    NotFoundError,
    PermissionDeniedError,
    TooLargeError,
    TransientError,
)
from shared.openai.shapes import ErrorBody, ErrorEnvelope
from shared.storage import StorageRefusedError

log = structlog.get_logger()

_INVALID = "invalid_request_error"
_SERVER = "server_error"
#: The SDKs ignore a longer wait in a header.
_MAX_WAIT_SECONDS = 60
#: nginx's status for a client that hung up. Only the log shows it.
_HUNG_UP = 499


class Answer(NamedTuple):
    """An error as HTTP shows it."""

    status: int
    body: ErrorBody
    headers: Mapping[str, str] = {}


def install(app: FastAPI) -> None:
    """Make the app answer every exception as this file says."""
    app.add_exception_handler(BatchyardError, _respond)
    app.add_exception_handler(RequestValidationError, _respond)
    app.add_exception_handler(HTTPException, _respond_to_routing)
    app.add_exception_handler(ClientDisconnect, _note_hang_up)
    app.add_exception_handler(Exception, _respond_to_bug)


def answer(error: Exception) -> Answer:  # noqa: C901, PLR0911, PLR0912  # one case per class, as flat as a table
    """The error that the caller sees for an exception."""
    match error:
        case RequestValidationError():
            # The first step of a location says whether it was the query, the path or a header.
            errors = [{**one, "loc": one["loc"][1:]} for one in error.errors()]
            return answer(complaint(errors))
        case InvalidInputError():
            return Answer(400, _body(str(error), param=error.param, code=error.code))
        case AuthenticationError():
            return Answer(401, _body(str(error), code=error.code), {"www-authenticate": "Bearer"})
        case PermissionDeniedError():
            return Answer(403, _body(str(error), code=error.code))
        case NotFoundError():
            return Answer(404, _body(str(error), param=error.param, code=error.code))
        case ConflictError() | InvalidTransitionError():
            # Clients retry a 409 on their own, which does not help here.
            return Answer(409, _body(str(error)), {"x-should-retry": "false"})
        case TooLargeError():
            return Answer(413, _body(str(error)))
        case LimitError():
            body = ErrorBody(message=str(error), type=error.kind, code=error.code)
            return Answer(429, body, _waiting(error.wait_seconds))
        case BrokenObjectError():
            body = ErrorBody(message=damaged(error.reason), type=_SERVER, code="object_damaged")
            return Answer(500, body, {"x-should-retry": "false"})
        case EngineDiedError():
            body = ErrorBody(message=DIED, type=_SERVER, code="engine_died")
            return Answer(500, body, {"x-should-retry": "false"})
        case DeadlineError():
            body = ErrorBody(message=str(error), type=_SERVER, code="deadline_exceeded")
            return Answer(504, body)
        case NoEngineError():
            body = ErrorBody(message=COLD, type=_SERVER, code="engine_starting")
            return Answer(503, body, {"retry-after": "10"})
        case TransientError():
            return Answer(503, ErrorBody(message=BUSY, type=_SERVER), {"retry-after": "5"})
        case _:
            return Answer(500, ErrorBody(message=BROKEN, type=_SERVER))


def _waiting(seconds: float | None) -> dict[str, str]:
    """When to try again. Clients retry on their own only if the wait is short."""
    if seconds is None or seconds > _MAX_WAIT_SECONDS:
        return {"retry-after": str(_MAX_WAIT_SECONDS), "x-should-retry": "false"}
    return {
        "retry-after": str(math.ceil(seconds)),
        "retry-after-ms": str(math.ceil(seconds * 1000)),
    }


async def _respond(request: Request, error: Exception) -> Response:
    if isinstance(error, NotFoundError | InvalidInputError | ConflictError):
        # The object may be missing or different because a rebuild of Redis began after the call.
        try:
            await request.state.services.state.restore.raise_if_under_way()
        except TransientError as unsure:
            error = unsure
    if isinstance(error, TransientError):
        log.warning("http.unavailable", code="service_unavailable", reason=str(error))
    if isinstance(error, StorageRefusedError | BrokenObjectError):
        log.error("http.broke", code=type(error).__name__, reason=str(error))
    return _shown(request, error, answer(error))


async def _respond_to_routing(request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        raise error
    match error.status_code:
        case HTTPStatus.NOT_FOUND:
            what = Answer(404, _body(f"Invalid URL ({request.method} {request.url.path})"))
            return _shown(request, error, what)
        case HTTPStatus.METHOD_NOT_ALLOWED:
            methods = _methods(request)
            body = _body(
                f"Only {' and '.join(methods)} requests are accepted.", code="method_not_supported"
            )
            return _response(Answer(405, body, {"allow": ", ".join(methods)}))
        case status:
            return _response(Answer(status, _body(error.detail), error.headers or {}))


async def _note_hang_up(_: Request, error: Exception) -> Response:  # noqa: ARG001  # handlers take the error
    return Response(status_code=_HUNG_UP)


async def _respond_to_bug(request: Request, error: Exception) -> Response:
    """Runs outside of all middleware, so it adds the headers of `Access` itself."""
    response = _shown(request, error, answer(error))
    response.headers.update(response_headers(request.scope))
    return response


def _methods(request: Request) -> list[str]:
    """All methods of the path. The router itself names only those of the first route."""
    found: set[str] = set()
    for route in request.app.routes:
        if route.matches(request.scope)[0] is not Match.NONE:
            found |= getattr(route, "methods", None) or set()
    return sorted(found)


def _body(message: str, *, param: str | None = None, code: str | None = None) -> ErrorBody:
    return ErrorBody(message=message, type=_INVALID, param=param, code=code)


def _shown(request: Request, error: Exception, what: Answer) -> Response:
    """The envelope for programs, and a page for people."""
    if is_for_people(request.scope["path"]):
        return error_page(request, error, what.status, what.body.message)
    return _response(what)


def _response(what: Answer) -> Response:
    return JSONResponse(
        ErrorEnvelope(error=what.body).model_dump(), what.status, headers=dict(what.headers)
    )
