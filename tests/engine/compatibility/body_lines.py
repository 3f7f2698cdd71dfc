"""The changes of good bodies that the forms of bodies are tested with, as lines. Pure."""

import json
from typing import Any

from tests.bodies import (
    CLOSED,
    COMPLETIONS,
    EMBEDDINGS,
    GOOD,
    MESSAGES,
    MODERATIONS,
    ODD,
    OPEN,
    POOLING,
    RESPONSES,
    TRANSCRIPTIONS,
    TRANSLATIONS,
    WRONG,
)
from tests.engine.compatibility.line import CHAT, JUDGE, WRITER, Line

_GREEDY = {"max_tokens": 4, "temperature": 0, "seed": 7}
#: What keeps answers short and the same each time.
_SHORT: dict[str, dict[str, Any]] = {
    CHAT: _GREEDY,
    COMPLETIONS: _GREEDY,
    MESSAGES: {"max_tokens": 4, "temperature": 0},
    RESPONSES: {"max_output_tokens": 4, "temperature": 0},
}


def _line(feature: str, path: str, change: dict[str, Any]) -> Line:
    engine = WRITER if path in _SHORT else JUDGE
    body = {**GOOD[path], **_SHORT.get(path, {}), **change, "model": engine}
    return Line(engine, feature, json.dumps(change)[:200], path, body)


#: vLLM has no moderations, no model of the lines hears, and the others have lines of their own.
_ELSEWHERE = {EMBEDDINGS, MODERATIONS, POOLING, TRANSCRIPTIONS, TRANSLATIONS}
LINES: tuple[Line, ...] = tuple(
    _line(feature, path, change)
    for feature, changes in (
        ("wrong values", [(path, change) for path, change, _ in WRONG]),
        ("closed fields", [(path, change) for path, change, _ in CLOSED]),
        ("open fields", OPEN),
        ("odd values", ODD),
    )
    for path, change in changes
    if path not in _ELSEWHERE
)
