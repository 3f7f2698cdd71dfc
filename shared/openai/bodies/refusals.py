"""Why the engine would refuse a body, and where in the body the reason is. Pure."""

from typing import Any, NamedTuple

from pydantic import ValidationError
from pydantic_core import PydanticCustomError


class Refusal(NamedTuple):
    """Why the engine would refuse a body; `param` is the field, dotted, None for the whole body."""

    param: str | None
    message: str


def wrong(message: str) -> PydanticCustomError:
    """The error with which a validator says `message`."""
    return PydanticCustomError("refused", message)


def first_refusal(error: ValidationError, body: Any, prefix: tuple[str, ...]) -> Refusal:
    """The most exact of what pydantic says; of several kinds that a field may have, all of them."""
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    paths = [_path(problem["loc"], body, problem["type"]) for problem in problems]
    deepest = max(paths, key=len)
    messages = dict.fromkeys(
        problem["msg"] for problem, path in zip(problems, paths, strict=True) if path == deepest
    )
    return Refusal(".".join((*prefix, *deepest)) or None, ", or ".join(messages))


def _path(steps: tuple[int | str, ...], body: Any, kind: str) -> tuple[str, ...]:
    """Where in the body a problem is: pydantic's location without the names of its own types."""
    path: list[str] = []
    for step in steps:
        is_index = isinstance(body, list) and isinstance(step, int) and step < len(body)
        if is_index or (isinstance(body, dict) and step in body):
            body = body[step]
        elif not (kind == "missing" and step == steps[-1]):
            continue
        path.append(str(step))
    return tuple(path)
