"""What a result line says, as values of a table's columns. Pure."""

import array
import base64
import binascii
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from shared.table.answer_shape import MisfitError, Shape, fitted

_Values = dict[str, Any]


class _Error(msgspec.Struct):
    code: str | int | None = None
    message: str | None = None


class _Response(msgspec.Struct):
    status_code: int
    body: msgspec.Raw


class _Line(msgspec.Struct):
    custom_id: str | None = None
    response: _Response | None = None
    error: _Error | None = None


class ResultRow(NamedTuple):
    """One result: by the names of `output.MADE`, and the parsed answer or None."""

    values: _Values
    parsed: Any


def result_row(line: bytes, shape: Shape | None, dimensions: int) -> ResultRow:
    """The row of a result line.

    An answer that does not fit the shape, or an embedding of other `dimensions` (0 for any), is the
    row's error.
    """
    found = msgspec.json.decode(line, type=_Line)
    values: _Values = {"custom_id": found.custom_id}
    if found.error is not None:
        values |= _error(found.error.code, found.error.message)
    if found.response is None:
        return ResultRow(values, None)
    text = bytes(found.response.body)
    values |= {"status_code": found.response.status_code, "response": text.decode()}
    body = msgspec.json.decode(text)
    if not isinstance(body, dict):
        return ResultRow(values, None)
    values |= _usage(_of(body, "usage"))
    if isinstance(refusal := body.get("error"), dict):
        return ResultRow({**values, **_refusal(refusal)}, None)
    values |= _answer(body)
    embedding = _embedding(body)
    if embedding is not None and dimensions in (0, len(embedding)):
        values["embedding"] = embedding
    elif embedding is not None:
        text_ = f"The embedding has {len(embedding)} dimensions, and others have {dimensions}."
        values |= _error("other_dimensions", text_)
    return _with_parsed(values, shape)


def has_shape(body: bytes, shape: Shape) -> bool:
    """Whether the answer in this body of a response fits the shape; one without a text does."""
    found = msgspec.json.decode(body)
    values = _answer(found) if isinstance(found, dict) else {}
    return "error_code" not in _with_parsed(values, shape).values


def dimensions_of(line: bytes) -> int:
    """The dimensions of a result's embedding; 0 if it has none."""
    return len(result_row(line, None, 0).values.get("embedding") or ())


def _with_parsed(values: _Values, shape: Shape | None) -> ResultRow:
    if shape is None or (answer := values.get("answer")) is None:
        return ResultRow(values, None)
    try:
        return ResultRow(values, fitted(json.loads(answer), shape))
    except MisfitError as error:
        reason = str(error)
    except (ValueError, RecursionError):
        reason = "it is no JSON"
    # The values themselves are not quoted.
    return ResultRow(values | _error("invalid_answer", f"The answer: {reason}."), None)


def _answer(body: _Values) -> _Values:
    match body:
        case {"choices": [{"message": dict() as message} as choice, *_]}:
            return _text(message.get("content"), choice.get("finish_reason"))
        case {"choices": [{"text": text} as choice, *_]}:
            return _text(text, choice.get("finish_reason"))
        case {"output": list() as items}:
            pieces = [_joined(one, "content", "output_text") for one in items]
            return _text("".join(filter(None, pieces)) if any(pieces) else None, body.get("status"))
        case {"content": list()}:
            return _text(_joined(body, "content", "text"), body.get("stop_reason"))
        case _:
            return {}


def _text(text: object, reason: object) -> _Values:
    return {
        "answer": text if isinstance(text, str) else None,
        "finish_reason": reason if isinstance(reason, str) else None,
    }


def _joined(holder: object, name: str, kind: str) -> str | None:
    pieces = holder.get(name) if isinstance(holder, dict) else None
    if not isinstance(pieces, list):
        return None
    texts = [one.get("text") for one in pieces if isinstance(one, dict) and one.get("type") == kind]
    return "".join(one for one in texts if isinstance(one, str)) if texts else None


def _embedding(body: _Values) -> list[float] | None:
    """The embedding of a request with one input; None of one with several."""
    match body:
        case {"data": [{"embedding": list() as numbers}]}:
            are_numbers = all(isinstance(one, int | float) for one in numbers)
            return numbers if are_numbers else None
        case {"data": [{"embedding": str() as text}]}:
            try:
                return array.array("f", base64.b64decode(text, validate=True)).tolist()
            except (binascii.Error, ValueError):
                return None
        case _:
            return None


def _usage(usage: Mapping[str, Any]) -> _Values:
    details = _of(usage, "prompt_tokens_details") or _of(usage, "input_tokens_details")
    return {
        "input_tokens": _number(usage, "prompt_tokens", "input_tokens"),
        "cached_tokens": _number({**usage, **details}, "cached_tokens", "cache_read_input_tokens"),
        "output_tokens": _number(usage, "completion_tokens", "output_tokens"),
    }


def _refusal(error: _Values) -> _Values:
    return _error(error.get("code") or error.get("type"), error.get("message"))


def _error(code: object, message: object) -> _Values:
    return {
        "error_code": "error" if code is None else str(code),
        "error": None if message is None else str(message),
    }


def _of(holder: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = holder.get(name)
    return found if isinstance(found, dict) else {}


def _number(usage: Mapping[str, Any], *names: str) -> int | None:
    return next((usage[name] for name in names if isinstance(usage.get(name), int)), None)
