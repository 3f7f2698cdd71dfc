"""The pipelines of a run: what they are made of, and what must come of their rows. Pure."""

import json
from collections.abc import Mapping
from typing import Any

from tests.chaos.rows import CHAT, answer, request

#: The stages of the calls, as `declaration` has them.
FIRST, SECOND = 1, 3
#: Rows whose number is a multiple of it are filtered out, and so many rows each are alike.
_UNWANTED, _ALIKE = 5, 3


def table(intent: Mapping[str, Any]) -> bytes:
    """The input: a row for each request of such a batch, with its number and what it is alike."""
    return b"".join(
        json.dumps(
            {**request(intent["asks"], row, intent["model"]), "n": row, "twin": twin_of(row)}
        ).encode()
        + b"\n"
        for row in intent["rows"]
    )


def declaration(intent: Mapping[str, Any], objects: str) -> dict[str, Any]:
    """The pipeline: a filter, a call, one row of each kind, and a call about the answers."""
    names = request(intent["asks"], 0, intent["model"])["body"]
    first = {name: f"{{{{ body.{name} }}}}" for name in names} | {"model": intent["model"]}
    second = second_request("{{ answer }}", intent["model"])
    cache = {"cache": True} if intent["cache"] else {}
    return {
        "input": {
            "objects": objects,
            "columns": ["body", "n", "twin"],
            "custom_id": "custom_id",
        },
        "stages": [
            {"filter": f"n % {_UNWANTED} != 0"},
            {"call": {"endpoint": CHAT, "template": first, "carry": ["n", "twin"], **cache}},
            {"deduplicate": ["twin"]},
            {"call": {"endpoint": CHAT, "template": second, "answer": "second", **cache}},
        ],
    }


def second_request(said: str, model: str) -> dict[str, Any]:
    """The body of the second call about this answer of the first."""
    return {"model": model, "messages": [{"role": "user", "content": f"answer {said}"}]}


def twin_of(row: int) -> int:
    """What a row has in common with those that are alike."""
    return row // _ALIKE


def is_wanted(row: int) -> bool:
    """Whether the filter lets the row through."""
    return row % _UNWANTED != 0


def first_answer(intent: Mapping[str, Any], row: int) -> str | None:
    """What the first call answers; None if it refuses the row."""
    return _said(request(intent["asks"], row, intent["model"])["body"])


def second_answer(intent: Mapping[str, Any], row: int) -> str | None:
    """What the second call answers to the answer of the first."""
    said = first_answer(intent, row)
    return None if said is None else _said(second_request(said, intent["model"]))


def _said(body: Mapping[str, Any]) -> str | None:
    status, found = answer(body)
    if status != 200:
        return None
    said: str = found["choices"][0]["message"]["content"]
    return said
