import json
from typing import Any

import pytest

from shared.openai.torn_texts import torn_text

_HALF = "cut \ud83d"


@pytest.mark.parametrize(
    ("body", "place"),
    [
        ({"messages": [{"role": "user", "content": _HALF}]}, "messages.0.content"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": _HALF}]}]},
            "messages.0.content.0.text",
        ),
        ({"prompt": ["whole", _HALF]}, "prompt.1"),
        ({"input": _HALF}, "input"),
        ({"input": "x", "instructions": _HALF}, "instructions"),
        ({"query": "x", "documents": ["y", _HALF]}, "documents.1"),
        ({"prompt": "x", "stop": [_HALF]}, "stop.0"),
    ],
)
def test_half_a_character_is_told_with_its_place(body: dict[str, Any], place: str) -> None:
    found = torn_text(json.dumps({"body": body}).encode(), body)

    assert found is not None
    assert found.param == place


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": "whole \U0001f600"},
        # vLLM answers these: they become no tokens.
        {"prompt": "x", "metadata": {"a": _HALF}},
        {"messages": [{"role": "user", "content": "x", "name": _HALF}]},
        {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": _HALF}}]}]},
    ],
)
def test_whole_characters_and_what_becomes_no_tokens_are_left_to_the_engine(
    body: dict[str, Any],
) -> None:
    assert torn_text(json.dumps({"body": body}).encode(), body) is None
