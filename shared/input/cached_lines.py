"""Rows whose answers are known before they run: in a copy, the answer stands in the line's place.

Pure.
"""

import json

import msgspec

from shared.input.problems import DECODE_ERRORS


class _CachedLine(msgspec.Struct):
    cached: msgspec.Raw
    # A request has one.
    method: str | None = None


def cached_line(custom_id: str | None, answer: bytes) -> bytes:
    """What stands for the line; `answer` is the body of a response, as JSON in one line."""
    head = f'{{"custom_id":{json.dumps(custom_id)},"cached":'
    return b"".join((head.encode(), answer, b"}\n"))


def cached_answer(line: bytes) -> bytes | None:
    """The answer in a line of `cached_line`; None for any other line."""
    try:
        found = msgspec.json.decode(line, type=_CachedLine)
    except DECODE_ERRORS:
        return None
    return bytes(found.cached) if found.method is None else None
