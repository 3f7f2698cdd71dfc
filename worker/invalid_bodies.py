"""What is said of a body that vLLM's models refuse: where it is wrong, and nothing that it holds.

vLLM's own words repeat the value of each error. A part of a message that none of 240 forms takes
would be repeated 240 times, with its picture.
"""

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

#: How many errors of one body are told; a union of dozens of forms has some for each of them.
MAX_ERRORS = 10
#: Characters of a name, which may be a client's own, and of a sentence.
MAX_NAME, _MAX_WORDS = 64, 300
#: The fields by which a form is told from others.
_KINDS = frozenset({"type", "role"})
_NOT_THIS_KIND = frozenset({"literal_error", "missing"})

#: An error as pydantic has it.
Error = Mapping[str, Any]
Place = tuple[int | str, ...]


def tell_only_places(app: Any) -> None:
    """Let vLLM's app answer an invalid body without repeating it."""
    from fastapi import Request
    from fastapi.exceptions import RequestValidationError
    from pydantic import ValidationError
    from starlette.responses import JSONResponse, Response
    from vllm.entrypoints.serve.exception_handling.error_response import create_error_response
    from vllm.entrypoints.serve.exception_handling.handlers.validation import (
        validation_exception_handler,
    )

    async def refuse(request: Request, error: RequestValidationError) -> Response:
        found = error.errors()
        told = RequestValidationError(told_errors(found))
        answer: Response = await validation_exception_handler(request, told)
        if len(found) <= MAX_ERRORS:
            return answer
        refused = json.loads(bytes(answer.body))
        message = refused["error"]["message"].replace(str(MAX_ERRORS), str(len(found)), 1)
        refused["error"]["message"] = f"{message}\n  {_more(len(found))}"
        return JSONResponse(refused, answer.status_code)

    async def refuse_late(_: Request, error: ValidationError) -> Response:
        refused = create_error_response(without_values(error))
        return JSONResponse(refused.model_dump(), refused.error.code)

    app.exception_handler(RequestValidationError)(refuse)
    # Of what the models of a request leave to be read later, such as the parts of a message.
    app.exception_handler(ValidationError)(refuse_late)
    # One has been made already, and it keeps the handlers that it was made with.
    app.middleware_stack = None
    if messages := getattr(app.state, "anthropic_serving_messages", None):
        messages.create_messages = _telling_no_values(messages.create_messages)


def _telling_no_values(create: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """What makes messages, whose errors vLLM's route would repeat: it gets them as answers."""
    from vllm.entrypoints.serve.exception_handling.error_response import create_error_response

    async def create_or_tell(request: Any, raw_request: Any = None) -> Any:
        try:
            return await create(request, raw_request)
        except Exception as error:  # noqa: BLE001  # as the route does
            return create_error_response(without_values(error))

    return create_or_tell


def without_values(error: Exception) -> Exception:
    """What pydantic says of a value, without the value; any other error as it is."""
    from pydantic import ValidationError

    if not isinstance(error, ValidationError):
        return error
    found = error.errors(include_url=False, include_input=False)
    lines = [f"{len(found)} validation error{'s'[: len(found) > 1]} for {error.title}"]
    for one in told_errors(found):
        lines += [".".join(map(str, one["loc"])), f"  {one['msg']} [type={one['type']}]"]
    if len(found) > MAX_ERRORS:
        lines.append(_more(len(found)))
    return ValueError("\n".join(lines))


def told_errors(errors: Sequence[Error]) -> list[dict[str, Any]]:
    """Those of a body's errors that are told, without the values; the likeliest if they are many.

    Where a value may have one of several forms, it is likely meant to have the form whose kind it
    names, and that of the deepest error.
    """
    chosen: Iterable[Error] = errors
    if len(errors) > MAX_ERRORS:
        others = {_form(one) for one in errors if _is_of_another_kind(one)}
        chosen = sorted(errors, key=lambda one: (_is_within(one["loc"], others), -len(one["loc"])))[
            :MAX_ERRORS
        ]
    return [_told(one) for one in chosen]


def _is_of_another_kind(error: Error) -> bool:
    place = error["loc"]
    return bool(place) and place[-1] in _KINDS and error["type"] in _NOT_THIS_KIND


def _form(error: Error) -> Place:
    """Where the form stands that has the field of this error."""
    return tuple(error["loc"][:-1])


def _is_within(place: Place, forms: set[Place]) -> bool:
    return any(tuple(place[:length]) in forms for length in range(1, len(place)))


def _told(error: Error) -> dict[str, Any]:
    told = {
        "type": error["type"],
        "loc": tuple(_cut(one, MAX_NAME) for one in error["loc"]),
        "msg": _cut(error["msg"], _MAX_WORDS),
    }
    if context := error.get("ctx"):
        told["ctx"] = {name: _cut(value, _MAX_WORDS) for name, value in context.items()}
    return told


def _cut(value: Any, length: int) -> Any:
    """The value, shortened if its text is longer. Exceptions stay what they are."""
    if isinstance(value, str):
        return value[:length]
    if isinstance(value, Exception) and len(str(value)) > length:
        return ValueError(str(value)[:length])
    return value


def _more(count: int) -> str:
    return f"and {count - MAX_ERRORS} more"
