"""What an engine answers to one row: a status, and a body of ASCII JSON on one line. Pure."""

import json
import re
from typing import Any

from worker.engine_errors import Answer

SUCCESS, CLIENT_ERROR, SERVER_ERROR = 200, 400, 500


def success(text: str) -> Answer:
    """The result of an answer that is JSON already."""
    return SUCCESS, _ascii(text)


def refusal(
    message: str, *, status: int = CLIENT_ERROR, param: str | None = None, code: str | None = None
) -> Answer:
    """The result of a row that is not run, because of what it asks for."""
    kind = "invalid_request_error"
    return failure(status, {"message": message, "type": kind, "param": param, "code": code})


def failure(status: int, error: dict[str, Any]) -> Answer:
    """An OpenAI error; only the fields that OpenAI has are kept."""
    keys = ("message", "type", "param", "code")
    return status, json.dumps({"error": {key: error.get(key) for key in keys}}).encode()


def from_http(status: int, body: bytes, content_type: bytes) -> Answer:
    """The result of an HTTP answer, whatever form its error has."""
    if status < CLIENT_ERROR:
        if not content_type.startswith(b"application/json"):
            return refusal(
                "The answer to this request is not JSON, and a batch's output holds JSON only. "
                "Change the request's fields that choose the form of the answer."
            )
        return status, _ascii(body.decode())
    try:
        answer = json.loads(body)
    except ValueError:
        answer = {}
    error = answer.get("error", answer.get("detail")) if isinstance(answer, dict) else None
    if not isinstance(error, dict):
        kind = "invalid_request_error" if status < SERVER_ERROR else "server_error"
        error = {"message": str(error or "The engine gave no reason."), "type": kind}
    return failure(status, error)


def _ascii(text: str) -> bytes:
    """The same JSON in ASCII, so that no reader of lines can find a line end inside it."""
    if not text.isascii():
        # JSON has such characters in strings only, where they may be escaped.
        text = re.sub(r"[^\x00-\x7f]+", lambda found: json.dumps(found[0])[1:-1], text)
    return text.encode("ascii")
