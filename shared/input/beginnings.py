"""What requests have in common with others: how their prompts begin, and their instructions. Pure.

It need not be exact. A block of characters stands for tokens of the engine's prefix cache, since
only the engine knows its own blocks.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple
from zlib import crc32

import msgspec

from shared.input.problems import DECODE_ERRORS
from shared.input.rows import count_or_none
from shared.openai.endpoints import ENDPOINTS, Endpoint

#: A block of a prompt, of about `BLOCK_TOKENS` tokens.
_BLOCK_CHARACTERS = 256
BLOCK_TOKENS = 64
#: Blocks of a prompt that are looked at: about 2,000 tokens.
_MAX_BLOCKS = 32
#: A longer number is no count.
_MAX_DIGITS = 10
_INSTRUCTING_ROLES = ("system", "developer")


class Beginning(NamedTuple):
    """How a request begins, as numbers that are equal in all processes."""

    #: A hash for each whole block of the prompt's beginning, of the block and all before it.
    prefix: tuple[int, ...] = ()
    #: Equal for requests with the same instructions, and form and limit of the answer; 0 if a
    #: request has none of them.
    kind: int = 0
    #: The tokens that one answer may have; None if the request sets no limit.
    limit: int | None = None


_LIMITS = sorted({name for endpoint in ENDPOINTS.values() for name in endpoint.output_limits})
_ABSENT = msgspec.Raw()
_Body = msgspec.defstruct(
    "_Body",
    [
        ("messages", Any, None),
        ("prompt", Any, None),
        ("input", Any, None),
        ("instructions", Any, None),
        ("system", Any, None),
        ("cache_salt", Any, None),
        *(
            (name, msgspec.Raw, _ABSENT)
            for name in (
                *_LIMITS,
                "response_format",
                "structured_outputs",
                "text",
                "tools",
            )
        ),
    ],
)
_FORM = tuple(name for name in _Body.__struct_fields__ if name not in _Body.__struct_fields__[:6])
_Line = msgspec.defstruct("_Line", [("url", str), ("body", _Body)])
_DECODER: msgspec.json.Decoder[Any] = msgspec.json.Decoder(_Line)


def beginning(line: bytes) -> Beginning:
    """How the request of a line begins; nothing is known of one that is not in a usual form."""
    try:
        request = _DECODER.decode(line)
    except DECODE_ERRORS:
        return Beginning()
    endpoint, body = ENDPOINTS.get(request.url), request.body
    if endpoint is None or not endpoint.has_output:
        # A model that gives vectors keeps no cache of prompts.
        return Beginning()
    return Beginning(_blocks(body), _kind(body), _limit(body, endpoint))


def _blocks(body: Any) -> tuple[int, ...]:
    wanted = _MAX_BLOCKS * _BLOCK_CHARACTERS
    # The same text with another salt has another place in the cache.
    pieces, length = [f"{body.cache_salt}"], 0
    for piece in _texts(body):
        pieces.append(piece[:wanted])
        length += len(piece)
        if length >= wanted:
            break
    text = "".join(pieces).encode(errors="surrogatepass")
    found, before = [], 0
    for end in range(_BLOCK_CHARACTERS, min(len(text), wanted) + 1, _BLOCK_CHARACTERS):
        before = crc32(text[end - _BLOCK_CHARACTERS : end], before)
        found.append(before)
    return tuple(found)


def _texts(body: Any) -> Iterator[str]:
    """The prompt's text from its start, as far as it can be told without the model's template."""
    if body.tools is not _ABSENT:
        yield bytes(body.tools).decode()
    if instructions := body.instructions or body.system:
        yield f"{instructions}"
    for content in (body.messages, body.prompt, body.input):
        if isinstance(content, list):
            for item in content:
                yield from _item(item)
        elif content is not None:
            yield f"{content}"


def _item(item: Any) -> list[str]:
    if not isinstance(item, dict):
        return [f"{item} "]
    role, content = f"\0{item.get('role')}\0", item.get("content")
    if isinstance(content, str):
        return [role, content]
    parts = content if isinstance(content, list) else [content]
    return [role, *map(_text, parts)]


def _text(part: Any) -> str:
    text = part.get("text") if isinstance(part, dict) else part
    return text if isinstance(text, str) else f"{part}"


def _kind(body: Any) -> int:
    found = 0
    if (instructions := body.instructions or body.system) is not None:
        found = crc32(f"{instructions}".encode(errors="surrogatepass"), found)
    for item in _items(body):
        if isinstance(item, dict) and item.get("role") in _INSTRUCTING_ROLES:
            found = crc32(f"{item.get('content')}".encode(errors="surrogatepass"), found)
    for place, name in enumerate(_FORM):
        if (raw := getattr(body, name)) is not _ABSENT:
            found = crc32(raw, found + place + 1)
    return found


def _limit(body: Any, endpoint: Endpoint) -> int | None:
    for name in endpoint.output_limits:
        if (raw := getattr(body, name)) is not _ABSENT:
            digits = bytes(raw)
            if digits.isdigit() and len(digits) <= _MAX_DIGITS:
                return count_or_none(int(digits))
    return endpoint.default_limit


def _items(body: Any) -> Iterator[Any]:
    for content in (body.messages, body.input):
        if isinstance(content, list):
            yield from content
