"""What callers of live calls get where an engine has an error for them. Pure."""

import json
from typing import Any

from shared.openai.shapes import ErrorBody, ErrorEnvelope

JSON, EVENTS = "application/json", "text/event-stream"
_RESPONSES = "/v1/responses"
_SERVER_ERROR = 500
COLD = "The model's engine is starting. Please send the request again in some seconds."
DIED = "The engine died while it answered. Please send the request again."


def envelope(status: int, body: bytes) -> bytes:
    """An engine's error in OpenAI's form; its own words stay."""
    try:
        answer = json.loads(body)
    except ValueError:
        answer = None
    found = answer.get("error", answer) if isinstance(answer, dict) else None
    error: dict[str, Any] = found if isinstance(found, dict) else {}
    kind = "invalid_request_error" if status < _SERVER_ERROR else "server_error"
    return _json(
        str(error.get("message") or "The engine gave no reason."),
        kind,
        _text(error.get("param")),
        _text(error.get("code")),
    )


def error_event(path: str, *, is_inside: bool) -> bytes:
    """The last event of a stream whose engine died; `is_inside` if it died inside an event."""
    end = b"\n\n" if is_inside else b""
    # The stream of a response names its events, and the SDKs read both in the same way.
    name = b"event: error\n" if path == _RESPONSES else b""
    return end + name + b"data: " + _json(DIED, "server_error", None, "engine_died") + b"\n\n"


def _json(message: str, kind: str, param: str | None, code: str | None) -> bytes:
    body = ErrorBody(message=message, type=kind, param=param, code=code)
    return ErrorEnvelope(error=body).model_dump_json().encode()


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
