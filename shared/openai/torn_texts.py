"""Texts of a request that are cut in the middle of a character: no tokenizer can read them. Pure.

JSON can escape half of a surrogate pair, which no encoding has. vLLM refuses it in the words of its
libraries, so this tells it before.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from shared.openai.bodies import Refusal
from shared.openai.endpoints import CONTENTS

#: How JSON escapes either half, in a pair or alone.
_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")
#: Fields that become tokens, besides those that hold a prompt.
_TEXTS = ("system", "instructions", "suffix", "stop", "stop_sequences", "bad_words")
_FIELDS = (*sorted(CONTENTS), *_TEXTS)
#: What is a text in an entry of a conversation. Names and calls go through the template's JSON.
_INSIDE = ("content", "text", "input_text")
_MAX_DEPTH = 8
#: What is wrong with such a text, and what to do.
TORN = "This text has half of a surrogate pair, which is no character. Leave it out"


def torn_text(line: bytes, body: Mapping[str, Any]) -> Refusal | None:
    """Where the body of this line has half of a surrogate pair that would become tokens."""
    if _ESCAPE.search(line) is None:
        return None
    for name in _FIELDS:
        if name in body and (place := next(_torn(name, body[name], 0), None)) is not None:
            return Refusal(place, TORN)
    return None


def _torn(place: str, value: Any, depth: int) -> Iterator[str]:
    if isinstance(value, str):
        if is_torn(value):
            yield place
    elif depth == _MAX_DEPTH:
        return
    elif isinstance(value, list):
        for number, one in enumerate(value):
            yield from _torn(f"{place}.{number}", one, depth + 1)
    elif isinstance(value, dict):
        for name in _INSIDE:
            if name in value:
                yield from _torn(f"{place}.{name}", value[name], depth + 1)


def is_torn(text: str) -> bool:
    """Whether UTF-8 does not have this text."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False
