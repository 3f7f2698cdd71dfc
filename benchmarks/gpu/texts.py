"""Rows of wanted lengths: the same ones for both sides, and never the same ones twice."""

import itertools
import json
import math
import random
from collections.abc import Sequence

from benchmarks.rows import CHAT, URLS, body

#: Each is one token of the tokenizers that are used, with its space.
_WORDS = (
    "account order password customer support delivery yesterday tomorrow address "
    "payment broken changed receipt please could somebody explain why the machine never "
    "answered after that update and whether there is another way to reach your team before "
    "Monday because our office opens early when trains arrive late"
)
#: That a text's own number and a chat template add, about.
_OTHER_TOKENS = 7
_salts = itertools.count()


def text(tokens: int, dice: random.Random) -> str:
    """A text of about so many tokens that begins like no other."""
    number = f"{next(_salts)}"
    return " ".join([number, *dice.choices(_WORDS.split(), k=max(1, tokens - _OTHER_TOKENS))])


def rows(model: str, kind: str, texts: Sequence[str], tokens_out: int | Sequence[int] = 0) -> bytes:
    """An input with these texts; `tokens_out` is one number for all, or one for each."""
    each = [tokens_out] * len(texts) if isinstance(tokens_out, int) else tokens_out
    lines = [
        {
            "custom_id": f"{kind}-{number}",
            "method": "POST",
            "url": URLS[kind],
            "body": body(kind, one, model=model, tokens=count),
        }
        for number, (one, count) in enumerate(zip(texts, each, strict=True))
    ]
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def equal(model: str, count: int, tokens_in: int, tokens_out: int) -> bytes:
    """Chat rows of one length."""
    dice = random.Random(count)
    return rows(model, CHAT, [text(tokens_in, dice) for _ in range(count)], tokens_out)


def between(low: int, high: int, count: int) -> list[int]:
    """Lengths of which as many are in each doubling, the same ones each time."""
    dice = random.Random(5)
    return [round(math.exp(dice.uniform(math.log(low), math.log(high)))) for _ in range(count)]


def sharing(
    model: str, *, prefixes: int, each: int, shared: int, own: int, tokens_out: int
) -> bytes:
    """Chat rows of several prefixes in any order."""
    dice = random.Random(3)
    begins = [text(shared, dice) for _ in range(prefixes)] * each
    dice.shuffle(begins)
    return rows(model, CHAT, [f"{begin} {text(own, dice)}" for begin in begins], tokens_out)
