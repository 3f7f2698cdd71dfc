"""Odd conversations, of which a dry run must make something."""

from typing import Any

import pytest

from gateway.conversation import conversation
from shared.openai.endpoints import ENDPOINTS


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": [{"type": [], "text": "a"}]},
        {"role": "user", "content": [{"type": {"a": 1}, "text": "a"}]},
        {
            "role": "assistant",
            "tool_calls": [{"function": {"name": "f", "arguments": "[" * 100_000}}],
        },
    ],
)
def test_what_is_odd_in_a_conversation_is_left_out(message: dict[str, Any]) -> None:
    found = conversation(ENDPOINTS["/v1/chat/completions"], {"messages": [message]})

    assert found.values["messages"][0]["role"] == message["role"]
