"""Texts and chats that tokenizers and templates are bad at."""

import random
from typing import Any

_PIECES = (
    "0123456789" * 3, "1,234.56", "Ⅷ ½ ²", "abc def Ghi", "don't I'll WE'VE", "x" * 50, "0" * 40,
    "é ü ñ ç", "e\u0301a\u0308", "ज़िन्दगी", "ไทย", "中文字符", "日本語テスト",
    "שלום עולם", "مرحبا", "\u202e",
    "😀👩‍👩‍👧‍👦🇩🇪", "\U0001d518\U0001d52b", "ﬁ ﬀ", "\U0010ffff", "\uffff", "\x00\x01\x7f",
    "\t\n\r ", "   ", " \u00a0\u2003\u200b\u200d\ufeff", "\r\n\r\n",
    "<|im_end|>", "<|im_start|>", "<s>", "</s>", "<unk>", "[INST]", "<bos>", "<start_of_turn>",
    "<end_of_turn>", "<|eot_id|>", "<|begin_of_text|>", "[CLS]", "[SEP]", "[MASK]",
    "▁▁", "Ġ", '{"a": [1,2]}', "http://a.b/c?d=e&f", "def f(x):\n    return x**2\n", "'''\"\"\"",
)  # fmt: skip
_ARGUMENTS = ('{"a": 1, "b": "é"}', "", "[]", "{bad")
_TOOLS = (
    {"function": {"name": "g", "strict": True}, "type": "function"},
    {
        "type": "function",
        "function": {
            "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
            "name": "look_up",
            "description": "Looks up 12 things.",
        },
    },
)


def odd_text(randoms: random.Random) -> str:
    """From empty to a few hundred characters."""
    count = randoms.choice((0, 1, 1, 2, 3, 5, 9, 20))
    return "".join(randoms.choice(("", "", " ", "\n")) + _piece(randoms) for _ in range(count))


def odd_chat(randoms: random.Random) -> dict[str, Any]:
    """The body of a chat, without its model: instructions, turns, tools and their calls."""
    messages: list[dict[str, Any]] = []
    if randoms.random() < 0.5:
        role = randoms.choice(("system", "system", "developer"))
        messages.append({"role": role, "content": _content(randoms)})
    for _ in range(randoms.randint(0, 2)):
        messages += _turn(randoms)
    messages.append({"role": "user", "content": _content(randoms)})
    body: dict[str, Any] = {"messages": messages}
    if randoms.random() < 0.4:
        body["tools"] = list(_TOOLS[: randoms.randint(1, 2)])
    if randoms.random() < 0.1:
        body["reasoning_effort"] = randoms.choice(("low", "high", "none"))
    if randoms.random() < 0.1:
        body["chat_template_kwargs"] = {"enable_thinking": False}
    if randoms.random() < 0.1:
        body["add_generation_prompt"] = False
    if randoms.random() < 0.1:
        body["add_special_tokens"] = True
    return body


def _turn(randoms: random.Random) -> list[dict[str, Any]]:
    answer: dict[str, Any] = {"role": "assistant", "content": odd_text(randoms)}
    found = [{"role": "user", "content": _content(randoms)}, answer]
    if randoms.random() < 0.3:
        answer[randoms.choice(("reasoning", "reasoning_content"))] = odd_text(randoms)
    if randoms.random() < 0.4:
        function = {"name": "look_up", "arguments": randoms.choice(_ARGUMENTS)}
        answer["tool_calls"] = [{"type": "function", "id": "call-1", "function": function}]
        answer["content"] = randoms.choice((None, odd_text(randoms)))
        result = randoms.choice((odd_text(randoms), [{"type": "text", "text": odd_text(randoms)}]))
        found.append({"role": "tool", "tool_call_id": "call-1", "content": result})
    return found


def _content(randoms: random.Random) -> str | list[dict[str, str]]:
    if randoms.random() < 0.6:
        return odd_text(randoms)
    return [{"type": "text", "text": odd_text(randoms)} for _ in range(randoms.randint(0, 3))]


def _piece(randoms: random.Random) -> str:
    if randoms.random() < 0.85:
        return randoms.choice(_PIECES)
    return chr(randoms.choice((randoms.randrange(32, 0x3000), randoms.randrange(0xE000, 0x20000))))
