"""The rows and models that every benchmark uses, so that both sides of a ratio do the same work."""

import json
import random
from typing import Any

CHAT = "chat"
COMPLETIONS = "completions"
EMBEDDINGS = "embeddings"
URLS = {
    CHAT: "/v1/chat/completions",
    COMPLETIONS: "/v1/completions",
    EMBEDDINGS: "/v1/embeddings",
}
OUTPUT_TOKENS = 128
_WORDS = "the quick brown fox jumps over a lazy dog while many small trains roll out of yards"


def texts(count: int) -> list[str]:
    """Texts of 20 to 60 words, the same ones each time."""
    dice = random.Random(7)
    return [" ".join(dice.choices(_WORDS.split(), k=dice.randint(20, 60))) for _ in range(count)]


def body(kind: str, text: str, *, model: str, tokens: int = OUTPUT_TOKENS) -> dict[str, Any]:
    """The body of one request; a row that generates has exactly `tokens` tokens."""
    if kind == EMBEDDINGS:
        return {"model": model, "input": text}
    asked: dict[str, Any] = (
        {"prompt": text}
        if kind == COMPLETIONS
        else {"messages": [{"role": "user", "content": text}]}
    )
    return {
        "model": model,
        **asked,
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
    }


def lines(kind: str, count: int, *, model: str, tokens: int = OUTPUT_TOKENS) -> bytes:
    """An input file of `count` rows."""
    return b"".join(
        json.dumps(
            {
                "custom_id": f"row-{number}",
                "method": "POST",
                "url": URLS[kind],
                "body": body(kind, text, model=model, tokens=tokens),
            }
        ).encode()
        + b"\n"
        for number, text in enumerate(texts(count))
    )
