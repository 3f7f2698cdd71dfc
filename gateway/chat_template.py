"""A model's chat template, and the conversation of a request in the form that templates expect."""

import datetime as dt
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jinja2
import structlog
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from gateway.model_files import ModelFiles
from shared.catalog import Model
from shared.openai.endpoints import Endpoint

log = structlog.get_logger()

#: What a template can raise for messages that it was not written for.
TEMPLATE_ERRORS = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
    RecursionError,
)
#: The limit of rendered characters: enough for the text that is tokenized, and for a template
#: that writes much around it.
_MAX_RENDERED = 4 * 1024 * 1024 + 200_000

Render = Callable[[Mapping[str, Any]], str]


def load_template(model: Model, files: ModelFiles) -> Render | None:
    """The function that renders messages into a prompt; None without a readable template."""
    config = files.read_json("tokenizer_config.json")
    text = _template_text(model, files, config)
    if text is None:
        return None
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: dt.datetime.now().strftime(form)  # noqa: DTZ005  # as the engine does
    try:
        template = environment.from_string(text)
    except jinja2.TemplateError as error:
        log.warning("template.unreadable", model=model.name, reason=str(error))
        return None
    tokens = {
        name: token.get("content", "") if isinstance(token, dict) else token
        for name, token in config.items()
        if name.endswith("_token") and isinstance(token, str | dict)
    }

    def render(values: Mapping[str, Any]) -> str:
        texts, size = [], 0
        for text in template.generate(**{**tokens, **values}):
            texts.append(text)
            size += len(text)
            if size > _MAX_RENDERED:
                break
        return "".join(texts)

    return render


def _template_text(model: Model, files: ModelFiles, config: Mapping[str, Any]) -> str | None:
    given = Path(model.chat_template) if model.chat_template else files.find("chat_template.jinja")
    if given is not None:
        try:
            return given.read_text(encoding="utf-8")
        except OSError:
            return None
    match config.get("chat_template"):
        case str() as text:
            return text
        case [*named]:
            texts = {one["name"]: one["template"] for one in named if isinstance(one, dict)}
            return texts.get("default")
        case _:
            return None


def template_arguments(body: Mapping[str, Any]) -> Mapping[str, Any]:
    extra = body.get("chat_template_kwargs")
    return extra if isinstance(extra, dict) else {}


def conversation(endpoint: Endpoint, body: Mapping[str, Any]) -> tuple[list[dict[str, Any]], bool]:
    """The conversation with texts as contents, and whether that is all of it."""
    given, is_whole = body.get(endpoint.content), True
    if endpoint.prompt == "items":
        is_whole = "tools" not in body
        given = [{"role": "user", "content": given}] if isinstance(given, str) else given
        if isinstance(text := body.get("instructions"), str) and isinstance(given, list):
            given = [{"role": "system", "content": text}, *given]
    if (system := body.get("system")) and isinstance(given, list):
        # A message of Anthropic's form has it beside the conversation.
        given = [{"role": "system", "content": system}, *given]
    if not isinstance(given, list):
        return [], False
    messages = []
    for item in given:
        if not isinstance(item, dict) or not isinstance(item.get("role"), str):
            is_whole = False
            messages.append({"role": "user", "content": json.dumps(item)})
            continue
        text, is_text = _text(item.get("content"))
        message = {**item, "content": text}
        if calls := item.get("tool_calls"):
            message["tool_calls"] = _with_parsed_arguments(calls)
        messages.append(message)
        is_whole = is_whole and is_text
    return messages, is_whole


def _text(content: object) -> tuple[str, bool]:
    """A message's text, and whether it holds nothing else (an image, say)."""
    match content:
        case None:
            return "", True
        case str():
            return content, True
        case list():
            texts = [part.get("text") for part in content if isinstance(part, dict)]
            found = [text for text in texts if isinstance(text, str)]
            return "\n".join(found), len(found) == len(content)
        case _:
            return "", False


def _with_parsed_arguments(calls: object) -> object:
    """As the engine gives them to templates: arguments as an object instead of its JSON."""
    if not isinstance(calls, list):
        return calls
    parsed = []
    for call in calls:
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict) and isinstance(function.get("arguments"), str):
            try:
                arguments = json.loads(function["arguments"])
            except ValueError:
                arguments = function["arguments"]
            parsed.append({**call, "function": {**function, "arguments": arguments}})
        else:
            parsed.append(call)
    return parsed


def _to_json(value: object, indent: int | None = None, **_: object) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _refuse(message: str) -> str:
    raise jinja2.TemplateError(message)
