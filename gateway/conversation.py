"""The conversation of a request as the engine gives it to chat templates. Pure."""

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from shared.openai.endpoints import Endpoint

#: Parts of contents that are text, and the field that holds it.
_TEXTS = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
    "thinking": "thinking",
}
#: What templates get from the engine itself, or what would change how it calls them.
_ENGINES = frozenset(
    {
        "chat_template",
        "conversation",
        "max_length",
        "messages",
        "padding",
        "return_assistant_tokens_mask",
        "return_dict",
        "return_tensors",
        "tokenize",
        "tokenizer_kwargs",
        "tools",
        "truncation",
    }
)


class Conversation(NamedTuple):
    """What a template is called with, and whether the engine would call it with the same."""

    values: dict[str, Any]
    is_whole: bool


def conversation(
    endpoint: Endpoint,
    body: Mapping[str, Any],
    *,
    as_parts: bool = False,
    knows_developer: bool = True,
    defaults: Mapping[str, Any] | None = None,
) -> Conversation:
    """The conversation of a body that has passed the line check.

    `as_parts` gives contents as lists of parts; `defaults` are the engine's own values.
    """
    given, is_whole = _given(endpoint, body)
    found = [_message(one, as_parts=as_parts) for one in given]
    messages = [one for one, _ in found]
    if not knows_developer and any(one["role"] == "developer" for one in messages):
        messages = _with_one_system([_as_system(one) for one in messages])
    values, is_usual = _values(body, defaults or {})
    is_tooled, tools = _tools(endpoint, body)
    is_whole = is_whole and is_usual and is_tooled and all(whole for _, whole in found)
    return Conversation({**values, "messages": messages, "tools": tools}, is_whole)


def texts_of(messages: Iterable[Mapping[str, Any]]) -> str:
    """The texts alone, where no template can be asked."""
    return "\n".join(one["content"] for one in messages if isinstance(one["content"], str))


def _given(endpoint: Endpoint, body: Mapping[str, Any]) -> tuple[list[Any], bool]:
    given = body.get("messages") if endpoint.prompt == "texts" else body.get(endpoint.content)
    is_whole = endpoint.prompt != "texts"
    if endpoint.prompt == "items":
        is_whole = "tools" not in body and not body.get("previous_input_messages")
        given = [{"role": "user", "content": given}] if isinstance(given, str) else given
        if isinstance(text := body.get("instructions"), str) and isinstance(given, list):
            given = [{"role": "system", "content": text}, *given]
    if (system := body.get("system")) and isinstance(given, list):
        # A message of Anthropic's form has it beside the conversation.
        is_whole = is_whole and isinstance(system, str)
        given = [{"role": "system", "content": system}, *given]
    return (given, is_whole) if isinstance(given, list) else ([], False)


def _message(given: Any, *, as_parts: bool) -> tuple[dict[str, Any], bool]:
    if not isinstance(given, dict) or not isinstance(given.get("role"), str):
        return {"role": "user", "content": json.dumps(given)}, False
    role = given["role"]
    parts, is_whole = _parts(given.get("content"))
    message: dict[str, Any] = {"role": role, "content": parts}
    if role == "tool" or not as_parts:
        kept = [one["text"] for one in parts if one["text"] or as_parts]
        message["content"] = "\n".join(kept)
    if role == "assistant":
        if isinstance(calls := given.get("tool_calls"), list) and calls:
            message["tool_calls"], is_known = _calls(calls)
            is_whole = is_whole and is_known
        reasoning = given.get("reasoning")
        reasoning = given.get("reasoning_content") if reasoning is None else reasoning
        if reasoning is not None:
            message |= dict.fromkeys(("reasoning", "reasoning_content", "thinking"), reasoning)
    if role == "tool" and "tool_call_id" in given:
        message["tool_call_id"] = given["tool_call_id"]
    message |= {key: given[key] for key in ("name", "task") if isinstance(given.get(key), str)}
    if role == "developer":
        message["tools"] = given.get("tools")
        is_whole = is_whole and not given.get("tools")
    return message, is_whole


def _parts(content: object) -> tuple[list[dict[str, str]], bool]:
    """The texts of a content, and whether it holds nothing else (an image, say)."""
    given = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if not isinstance(given, list):
        return [], given is None
    found: list[dict[str, str]] = []
    is_whole = True
    for part in given:
        one = {"type": "text", "text": part} if isinstance(part, str) else part
        kind = one.get("type") if isinstance(one, dict) else None
        text = one.get(_TEXTS[kind]) if isinstance(kind, str) and kind in _TEXTS else None
        if isinstance(text, str):
            found.append({"type": "text", "text": text})
        # Templates can see other fields of a part.
        is_whole = is_whole and isinstance(text, str) and len(one) == len(("type", "text"))
    return found, is_whole


def _calls(given: list[Any]) -> tuple[list[Any], bool]:
    """Calls with their arguments as an object instead of its JSON."""
    found: list[Any] = []
    is_whole = True
    for call in given:
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict):
            return [*found, call], False
        is_whole = is_whole and call.keys() <= {"id", "type", "function"}
        is_whole = is_whole and function.keys() <= {"name", "arguments"}
        named = {"arguments": _arguments(function.get("arguments")), "name": function.get("name")}
        found.append({**_picked(call, "id"), "function": named, **_picked(call, "type")})
    return found, is_whole


def _picked(given: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {name: given[name]} if name in given else {}


def _arguments(given: object) -> dict[str, Any]:
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except (ValueError, RecursionError):
            return {}
    return given if isinstance(given, dict) else {}


def _as_system(message: dict[str, Any]) -> dict[str, Any]:
    if message["role"] != "developer":
        return message
    return {key: value for key, value in message.items() if key != "tools"} | {"role": "system"}


def _with_one_system(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """All instructions in the first message, as some templates want it."""
    systems = [one for one in messages if one["role"] == "system"]
    if len(systems) == 1 and messages[0] is systems[0]:
        return messages
    texts = [
        content if isinstance(content, str) else "\n".join(part["text"] for part in content)
        for content in (one["content"] for one in systems)
    ]
    others = [one for one in messages if one["role"] != "system"]
    return [{"role": "system", "content": "\n\n".join(filter(None, texts))}, *others]


def _values(body: Mapping[str, Any], defaults: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
    """What else the template is called with."""
    asked = body.get("chat_template_kwargs")
    own = dict(asked) if isinstance(asked, dict) else {}
    effort = body.get("reasoning_effort")
    said = {
        "add_generation_prompt": body.get("add_generation_prompt", True),
        "documents": body.get("documents"),
        "reasoning_effort": effort,
    }
    if effort is not None and "enable_thinking" not in own:
        said["enable_thinking"] = effort != "none"
    values = {**defaults, **_set(own | _set(said))}
    is_usual = not (body.get("continue_final_message") or own.get("continue_final_message"))
    is_usual = is_usual and not own.keys() & _ENGINES
    return {**values, "documents": values.get("documents")}, is_usual


def _set(values: Mapping[str, Any]) -> dict[str, Any]:
    """Without those that vLLM takes for not said."""
    return {name: value for name, value in values.items() if value is not None and value != "auto"}


def _tools(endpoint: Endpoint, body: Mapping[str, Any]) -> tuple[bool, list[dict[str, Any]] | None]:
    """Whether they are told as the engine tells them, and the tools."""
    given = body.get("tools")
    if not isinstance(given, list):
        return True, None
    if endpoint.path != "/v1/chat/completions":
        return False, given
    found, is_whole = [], True
    for tool in given:
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict):
            return False, given
        is_whole = is_whole and tool.keys() <= {"type", "function"}
        is_whole = is_whole and "defer_loading" not in function
        told = {name: function.get(name) for name in ("name", "description", "parameters")}
        if function.get("strict") is not None:
            told["strict"] = function["strict"]
        found.append({"type": tool.get("type", "function"), "function": told})
    return is_whole, found
