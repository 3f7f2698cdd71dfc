"""A model's chat templates, run as the engine runs them: in transformers' environment of Jinja."""

import datetime as dt
import json
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import jinja2.ext
import jinja2.parser
import structlog
from jinja2 import nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

from gateway.engine_tokenizer import EngineTokenizer
from shared.catalog import Model

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


class ChatTemplate(NamedTuple):
    """One template."""

    compiled: jinja2.Template
    special_tokens: Mapping[str, str]
    #: Whether it goes through the parts of contents, so that the engine gives it no plain texts.
    reads_parts: bool
    #: Whether it knows the role `developer`.
    knows_developer: bool

    def render(self, values: Mapping[str, Any]) -> str:
        """The prompt; raises TEMPLATE_ERRORS."""
        texts, size = [], 0
        for text in self.compiled.generate(**{**self.special_tokens, **values}):
            texts.append(text)
            size += len(text)
            if size > _MAX_RENDERED:
                break
        return "".join(texts)


class ChatTemplates(NamedTuple):
    """The template for most chats, and the one for those with tools."""

    usual: ChatTemplate
    with_tools: ChatTemplate


def load_templates(model: Model, known: EngineTokenizer) -> ChatTemplates | None:
    """The templates of the catalog, or those of the model; None without a readable one."""
    texts: dict[str, Any] = {}
    if model.chat_template:
        try:
            texts["default"] = Path(model.chat_template).read_text(encoding="utf-8")
        except OSError:
            return None
    elif isinstance(known.chat_template, dict):
        texts = known.chat_template
    elif known.chat_template is not None:
        texts["default"] = known.chat_template
    if "default" not in texts:
        return None
    form = model.engine.get("chat_template_content_format", "auto")
    try:
        compiled = {
            name: _compiled(text, known.special_tokens, form)
            for name, text in texts.items()
            if name in ("default", "tool_use")
        }
    except jinja2.TemplateError as error:
        log.warning("template.unreadable", model=model.name, reason=str(error))
        return None
    return ChatTemplates(compiled["default"], compiled.get("tool_use", compiled["default"]))


def _compiled(text: str, special_tokens: Mapping[str, str], form: object) -> ChatTemplate:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: dt.datetime.now().strftime(form)  # noqa: DTZ005  # as the engine does
    return ChatTemplate(
        environment.from_string(text),
        special_tokens,
        reads_parts(environment.parse(text)) if form == "auto" else form == "openai",
        '"developer"' in text or "'developer'" in text,
    )


class _Generation(jinja2.ext.Extension):
    """The tag around what the model has written; it makes no difference to the prompt."""

    tags = {"generation"}  # noqa: RUF012  # as the class above declares it

    def parse(self, parser: jinja2.parser.Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(
    value: object,
    ensure_ascii: bool = False,  # noqa: FBT001, FBT002  # templates say it by position, too
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,  # noqa: FBT001, FBT002  # as above
) -> str:
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _refuse(message: str) -> str:
    raise jinja2.TemplateError(message)


def reads_parts(tree: nodes.Template) -> bool:
    """Whether vLLM takes it for a template that goes through the parts of contents."""
    try:
        messages = [_name(loop.target) for loop in _loops(tree, _aliases(tree, "messages"))]
        for loop in tree.find_all(nodes.For):
            if isinstance(loop.iter, nodes.Name) and loop.iter.name == "content":
                return True
            if any(_is_of(loop.iter, name, "content") for name in messages):
                return True
    except TypeError:
        # vLLM gives up where names are unpacked.
        pass
    return False


def _loops(tree: nodes.Template, names: list[str]) -> Iterator[nodes.For]:
    for loop in tree.find_all(nodes.For):
        if any(_is_of(loop.iter, name) for name in names):
            yield loop


def _aliases(tree: nodes.Template, name: str) -> list[str]:
    """The name, and all to which it or a part of it is assigned."""
    found, waiting = [name], deque([name])
    while waiting:
        known = waiting.popleft()
        for assigned in tree.find_all(nodes.Assign):
            if _is_of(assigned.node, known) and (new := _name(assigned.target)) != known:
                if new not in found:
                    waiting.append(new)
                found.append(new)
    return found


def _name(node: nodes.Node) -> str:
    if not isinstance(node, nodes.Name):
        raise TypeError
    return node.name


def _is_of(node: nodes.Node | None, name: str, attribute: str | None = None) -> bool:
    """Whether it is the variable or its attribute, perhaps filtered or cut."""
    match node:
        case nodes.Filter() | nodes.Test():
            return _is_of(node.node, name, attribute)
        case nodes.Getitem(arg=nodes.Slice()):
            return _is_of(node.node, name, attribute)
        case nodes.Getitem(arg=nodes.Const(value=key)) | nodes.Getattr(attr=key):
            return key == attribute and _is_of_name(node.node, name)
        case _:
            return attribute is None and _is_of_name(node, name)


def _is_of_name(node: nodes.Node | None, name: str) -> bool:
    return isinstance(node, nodes.Name) and node.ctx == "load" and node.name == name
