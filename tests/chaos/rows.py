"""Generated requests, and the answers of the simulated engine and of a real one. Pure."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

CHAT = "/v1/chat/completions"
#: The model of a real engine: nobody knows its words, but how many they have to be.
REAL_MODEL = "tiny-chat"
_MAX_TOKENS = 24
#: A request with this text kills its model's engine, with everything in it.
DEADLY = "end this model's engine"
#: How a prompt begins that the engine refuses.
_REFUSE = "refuse"
#: About one row of a batch in this many is refused.
_REFUSED_EVERY = 9
#: How many beginnings the prompts of a batch have, and how often each repeats its few words: enough
#: that large batches are planned in groups.
_PREFIXES, _PREFIX_WORDS = 40, 60
_OK, _REFUSED = 200, 400


class Answer(NamedTuple):
    """HTTP status and body, as the engine gives them."""

    status: int
    body: dict[str, Any]


def request(
    key: str, row: int, model: str, *, padding: int = 0, deadly: int | None = None
) -> dict[str, Any]:
    """The request number `row` of the batch `key`: always the same one.

    An engine dies of the one with the number `deadly`.
    """
    if row == deadly:
        return _line(key, row, {"model": model, "messages": [{"role": "user", "content": DEADLY}]})
    digest = hashlib.sha256(f"{key} {row}".encode()).hexdigest()
    if model == REAL_MODEL:
        asked = {"model": model, "messages": [{"role": "user", "content": f"{digest} {row}"}]}
        length = {"max_tokens": 1 + int(digest[:4], 16) % _MAX_TOKENS, "ignore_eos": True}
        return _line(key, row, {**asked, **length})
    verb = _REFUSE if int(digest[:4], 16) % _REFUSED_EVERY == 0 else "answer"
    words = " ".join([verb, digest, *["word"] * (int(digest[4:6], 16) % 12), "x" * padding])
    rules = f"{key} {int(digest[6:8], 16) % _PREFIXES} " * _PREFIX_WORDS
    messages = [{"role": "system", "content": rules}, {"role": "user", "content": words}]
    return _line(key, row, {"model": model, "messages": messages})


def _line(key: str, row: int, body: dict[str, Any]) -> dict[str, Any]:
    return {"custom_id": f"{key}.{row}", "method": "POST", "url": CHAT, "body": body}


def lines(
    key: str, rows: Sequence[int], model: str, *, padding: int = 0, deadly: int | None = None
) -> bytes:
    """An input file of these rows of the batch `key`."""
    return b"".join(
        json.dumps(request(key, row, model, padding=padding, deadly=deadly)).encode() + b"\n"
        for row in rows
    )


def answer(body: Mapping[str, Any]) -> Answer:
    """The engine's answer to a request's body."""
    words = body["messages"][-1]["content"]
    if words.startswith(_REFUSE):
        error = {"message": "Refused.", "type": "invalid_request_error", "param": None}
        return Answer(_REFUSED, {"error": {**error, "code": "refused"}})
    count = words.count(" ") + 1
    # As long as it was asked, so that outputs may be large.
    said = hashlib.sha256(words.encode()).hexdigest() + words[-1] * (len(words) // 2)
    return Answer(
        _OK,
        {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 1_795_000_000,
            "model": body["model"],
            "choices": [
                {
                    "index": 0,
                    "finish_reason": "stop",
                    "message": {"role": "assistant", "content": said},
                }
            ],
            "usage": {
                "prompt_tokens": count,
                "completion_tokens": count // 2,
                "total_tokens": count + count // 2,
            },
        },
    )


def expected(
    key: str, rows: Sequence[int], model: str, *, padding: int = 0, deadly: int | None = None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Custom id and body of each row, in order."""
    for row in rows:
        asked = request(key, row, model, padding=padding, deadly=deadly)
        yield asked["custom_id"], asked["body"]


def is_answer(asked: Mapping[str, Any], status: int, body: Mapping[str, Any]) -> bool:
    """Whether this is an engine's answer to the body of this request."""
    if asked["model"] != REAL_MODEL:
        return (status, body) == answer(asked)
    # No two rows of a batch are sure to differ in length, but mixed-up ones would soon show.
    return (
        status == _OK
        and body["model"] == REAL_MODEL
        and len(body["choices"]) == 1
        and body["choices"][0]["finish_reason"] == "length"
        and body["usage"]["completion_tokens"] == asked["max_tokens"]
    )
