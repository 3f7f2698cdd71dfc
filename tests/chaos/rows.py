"""Made-up requests, and the answer that the made-up engine gives to each. Pure."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

CHAT = "/v1/chat/completions"
#: How a prompt begins that the engine refuses.
_REFUSE = "refuse"
#: Of a batch's rows, about one in so many is refused.
_REFUSED_EVERY = 9


class Answer(NamedTuple):
    """HTTP status and body, as the engine gives them."""

    status: int
    body: dict[str, Any]

    @property
    def tokens(self) -> tuple[int, int]:
        """Input and output tokens that count for it."""
        usage = self.body.get("usage", {})
        return usage.get("prompt_tokens", 0), usage.get("completion_tokens", 0)


def request(key: str, row: int, model: str, *, padding: int = 0) -> dict[str, Any]:
    """The request number `row` of the batch `key`: always the same one."""
    digest = hashlib.sha256(f"{key} {row}".encode()).hexdigest()
    verb = _REFUSE if int(digest[:4], 16) % _REFUSED_EVERY == 0 else "answer"
    words = " ".join([verb, digest, *["word"] * (int(digest[4:6], 16) % 12), "x" * padding])
    return {
        "custom_id": f"{key}.{row}",
        "method": "POST",
        "url": CHAT,
        "body": {"model": model, "messages": [{"role": "user", "content": words}]},
    }


def lines(key: str, rows: Sequence[int], model: str, *, padding: int = 0) -> bytes:
    """An input file of these rows of the batch `key`."""
    return b"".join(
        json.dumps(request(key, row, model, padding=padding)).encode() + b"\n" for row in rows
    )


def answer(body: dict[str, Any]) -> Answer:
    """What the engine says to a request's body."""
    words = body["messages"][-1]["content"]
    if words.startswith(_REFUSE):
        error = {"message": "Refused.", "type": "invalid_request_error", "param": None}
        return Answer(400, {"error": {**error, "code": "refused"}})
    count = words.count(" ") + 1
    # As long as it was asked, so that outputs may be large.
    said = hashlib.sha256(words.encode()).hexdigest() + words[-1] * (len(words) // 2)
    return Answer(
        200,
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
    key: str, rows: Sequence[int], model: str, *, padding: int = 0
) -> Iterator[tuple[str, Answer]]:
    """Custom id and answer of each row, in order."""
    for row in rows:
        asked = request(key, row, model, padding=padding)
        yield asked["custom_id"], answer(asked["body"])
