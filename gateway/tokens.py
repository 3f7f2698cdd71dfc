"""Counts the prompt tokens of requests as the model's engine would, without an engine.

Knows neither HTTP nor storage. Where the model's tokenizer is not on this machine it estimates,
and says so.
"""

import datetime as dt
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jinja2
import msgspec
import structlog
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from gateway.model_files import ModelFiles, max_model_len
from shared.catalog import Model
from shared.openai.endpoints import ENDPOINTS, Endpoint

log = structlog.get_logger()

Method = Literal["tokenizer", "tokenizer_without_template", "bytes"]

#: What a template raises for messages that it was not written for.
_TEMPLATE_ERRORS = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
    RecursionError,
)
#: Bytes of JSON that stand for about one token.
_BYTES_PER_TOKEN = 4
#: Of a longer prompt only the beginning is tokenized.
_MOST_CHARACTERS = 200_000
#: What a template may write besides what it is given.
_MOST_RENDERED = 4 * 1024 * 1024


class Counted(NamedTuple):
    """Prompt tokens of a request: all of them, and what its longest prompt has at least.

    Both are as the engine will count if `is_exact`, else `total` is an estimate.
    """

    total: int
    at_least: int
    is_exact: bool


class Counter:
    """Counts for one model; made by `load_counter`, safe to use from several threads."""

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        render: Callable[[Mapping[str, Any]], str] | None,
        *,
        most_tokens: int | None,
    ) -> None:
        self._tokenizer = tokenizer
        self._render = render
        self.max_model_len = most_tokens
        #: Tokens that a template adds to a short conversation; 0 without one.
        self.overhead = 0
        if tokenizer is not None and render is not None:
            messages = [{"role": "user", "content": ""}]
            chat = next(one for one in ENDPOINTS.values() if one.prompt == "messages")
            self.overhead = self._count_body(chat, {chat.content: messages}).total

    @property
    def has_tokenizer(self) -> bool:
        return self._tokenizer is not None

    def method(self, endpoint: str) -> Method:
        """How requests of this endpoint are counted."""
        if self._tokenizer is None:
            return "bytes"
        if self._render is None and ENDPOINTS[endpoint].prompt != "texts":
            return "tokenizer_without_template"
        return "tokenizer"

    def count(self, endpoint: str, line: bytes) -> Counted:
        """The prompt tokens of a request line that has passed the line check."""
        if self._tokenizer is None:
            guess = len(line) // _BYTES_PER_TOKEN
            return Counted(guess, 0, is_exact=False)
        body: dict[str, Any] = msgspec.json.decode(line)["body"]
        return self._count_body(ENDPOINTS[endpoint], body)

    def _count_body(self, endpoint: Endpoint, body: Mapping[str, Any]) -> Counted:
        if endpoint.prompt == "texts":
            found, is_whole = self._count_prompts(body.get(endpoint.content)), True
        else:
            text, is_whole = self._conversation(endpoint, body)
            found = [self._count_text(text, special=False)]
        total = sum(count for count, _ in found)
        is_exact = is_whole and all(count == least for count, least in found)
        if body.get("truncate_prompt_tokens") is not None:
            # The engine shortens the prompt by itself: it fits, however long it is.
            return Counted(total, 0, is_exact=is_exact)
        return Counted(total, max((least for _, least in found), default=0), is_exact=is_exact)

    def _count_prompts(self, prompt: object) -> list[tuple[int, int]]:
        """The tokens of each prompt of a completion or embedding, in any of its forms."""
        match prompt:
            case str():
                return [self._count_text(prompt, special=True)]
            case [int(), *_]:
                return [(len(prompt), len(prompt))]
            case list():
                room, found = _MOST_CHARACTERS, []
                for one in prompt:
                    if isinstance(one, str) and room > 0:
                        found.append(self._count_text(one, special=True))
                        room -= len(one)
                    elif isinstance(one, str):
                        # Many long prompts in one row: the last ones are not worth their time.
                        found.append((1 + len(one) // _BYTES_PER_TOKEN, 0))
                    elif isinstance(one, list):
                        found.append((len(one), len(one)))
                return found
            case _:
                return []

    def _count_text(self, text: str, *, special: bool) -> tuple[int, int]:
        """The text's tokens, and the least that they can be."""
        assert self._tokenizer is not None  # noqa: S101  # only asked when there is one
        head = text[:_MOST_CHARACTERS]
        # By the batch, because only that lets other threads run meanwhile.
        [encoding] = self._tokenizer.encode_batch_fast([head], add_special_tokens=special)
        count = len(encoding)
        return (count, count) if head == text else (count * len(text) // len(head), count)

    def _conversation(self, endpoint: Endpoint, body: Mapping[str, Any]) -> tuple[str, bool]:
        """The prompt as the engine sees it, and whether nothing that counts is missing."""
        messages, is_whole = _messages(endpoint, body)
        if self._render is not None:
            try:
                text = self._render(
                    {
                        **_template_arguments(body),
                        "messages": messages,
                        "tools": body.get("tools"),
                        "add_generation_prompt": body.get("add_generation_prompt", True),
                    }
                )
            except _TEMPLATE_ERRORS as error:
                log.debug("template.broke", kind=type(error).__name__)
            else:
                return text, is_whole
        texts = [message.get("content") or "" for message in messages]
        return "\n".join(text for text in texts if isinstance(text, str)), False


def load_counter(model: Model) -> Counter:
    """Read the model's tokenizer and chat template. Slow; never raises for what it finds."""
    files = ModelFiles(model.source, model.revision)
    if own := model.engine.get("tokenizer"):
        files = ModelFiles(str(own), model.engine.get("tokenizer_revision"))
    most = max_model_len(model)
    path = files.find("tokenizer.json")
    if path is None or model.engine.get("tokenizer_mode", "auto") not in ("auto", "hf", "slow"):
        return Counter(None, None, most_tokens=most)
    try:
        tokenizer = Tokenizer.from_file(str(path))
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return Counter(tokenizer, _template(model, files), most_tokens=most)
    except Exception as error:  # noqa: BLE001  # tokenizers raises nothing narrower
        log.warning("tokenizer.unreadable", model=model.name, reason=str(error)[:300])
        return Counter(None, None, most_tokens=most)


def _template(model: Model, files: ModelFiles) -> Callable[[Mapping[str, Any]], str] | None:
    """What turns messages into a prompt; None for a model without a template, or an unusual one."""
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
        pieces, size = [], 0
        for piece in template.generate(**{**tokens, **values}):
            pieces.append(piece)
            size += len(piece)
            if size > _MOST_RENDERED + _MOST_CHARACTERS:
                break
        return "".join(pieces)

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


def _template_arguments(body: Mapping[str, Any]) -> Mapping[str, Any]:
    extra = body.get("chat_template_kwargs")
    return extra if isinstance(extra, dict) else {}


def _messages(endpoint: Endpoint, body: Mapping[str, Any]) -> tuple[list[dict[str, Any]], bool]:
    """The conversation with texts as contents, and whether that is all of it."""
    given, is_whole = body.get(endpoint.content), True
    if endpoint.prompt == "items":
        is_whole = "tools" not in body
        given = [{"role": "user", "content": given}] if isinstance(given, str) else given
        if isinstance(told := body.get("instructions"), str) and isinstance(given, list):
            given = [{"role": "system", "content": told}, *given]
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
