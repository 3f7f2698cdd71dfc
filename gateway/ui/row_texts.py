"""What people want to read of a request and of its result. Pure."""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

_HTTP_OK = 200
_MAX_CHARACTERS = 4000


class ResultRow(NamedTuple):
    """One request as the page shows it."""

    #: Counted from 1, as lines of the input are.
    line: int
    custom_id: str
    prompt: str
    #: The answer, or why there is none.
    answer: str
    is_failed: bool


def result_row(line: int, result: bytes, request: bytes | None) -> ResultRow:
    """The row, from its result line and from its input line, if that is known."""
    parsed: dict[str, Any] = json.loads(result)
    reason = reason_of(parsed)
    return ResultRow(
        line,
        str(parsed.get("custom_id", "")),
        _cut(_prompt(request)) if request else "",
        _cut(_answer(parsed) if reason is None else reason),
        reason is not None,
    )


def reason_of(result: Mapping[str, Any]) -> str | None:
    """Why the request failed; None if it did not."""
    response = result.get("response") or {}
    body = response.get("body") or {}
    error = result.get("error") or (body.get("error") if isinstance(body, dict) else None)
    if not error and response.get("status_code", _HTTP_OK) == _HTTP_OK:
        return None
    status = response.get("status_code")
    message = (error or {}).get("message") or "no reason was given"
    code = (error or {}).get("code") or (f"HTTP {status}" if status else "")
    return f"{message} ({code})" if code else str(message)


def _answer(result: Mapping[str, Any]) -> str:
    body = (result.get("response") or {}).get("body") or {}
    if choices := body.get("choices"):
        return "\n\n".join(_choice(choice) for choice in choices)
    if "output" in body:
        parts = [part for item in body["output"] for part in item.get("content") or ()]
        return "\n".join(part.get("text", "") for part in parts)
    if data := body.get("data"):
        size = len(data[0].get("embedding", ()))
        return f"{len(data)} vectors" + (f" of {size} numbers" if size else "")
    return json.dumps(body, ensure_ascii=False)


def _choice(choice: Mapping[str, Any]) -> str:
    message = choice.get("message") or {}
    if calls := message.get("tool_calls"):
        return json.dumps(calls, ensure_ascii=False)
    return str(message.get("content") or choice.get("text") or "")


def _prompt(line: bytes) -> str:
    try:
        body = json.loads(line)["body"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return ""
    # A line may ask for anything; it has an error then.
    match body:
        case {"messages": [*_, {"content": content}]}:
            return _content(content)
        case {"prompt": content} | {"input": content}:
            return _content(content)
        case _:
            return ""


def _content(content: Any) -> str:
    match content:
        case str():
            return content
        case list():
            texts = [one if isinstance(one, str) else _part(one) for one in content]
            return "\n".join(texts)
        case _:
            return ""


def _part(part: Any) -> str:
    if not isinstance(part, dict):
        return str(part)
    return str(part.get("text") or f"[{part.get('type', 'something')}]")


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_CHARACTERS else f"{text[:_MAX_CHARACTERS]} …"
