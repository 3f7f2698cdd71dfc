"""A request body with Jinja in its strings, compiled once and rendered for each row.

Compiling may run what the template's author wrote, so only the renderer's own process does it.
Elsewhere `syntax_problem` only parses.
"""

import base64
import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jinja2
import msgspec
from jinja2 import meta
from jinja2.sandbox import ImmutableSandboxedEnvironment

from shared.errors import BatchyardError

#: The whole row, for columns whose names are no identifiers.
ROW = "row"
#: What a template may raise for values that it was not written for.
ROW_ERRORS = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
    RecursionError,
    MemoryError,
    TimeoutError,
)
_MARKS = ("{{", "{%", "{#")
_ONE_EXPRESSION = re.compile(r"\s*\{\{-?((?:(?!\{\{|\}\}|\{%|\{#).)+?)-?\}\}\s*", re.DOTALL)
_MAX_DEPTH = 100


class SyntaxProblem(NamedTuple):
    """Where a template cannot be read, and why."""

    param: str
    reason: str


class MalformedTemplateError(BatchyardError):
    """A template that cannot be read."""

    def __init__(self, problem: SyntaxProblem) -> None:
        super().__init__(f"{problem.param}: {problem.reason}")
        self.problem = problem


class RowError(BatchyardError):
    """A row for which the template cannot be rendered. Says nothing of the row's values."""

    def __init__(self, param: str, reason: str) -> None:
        super().__init__(reason)
        self.param = param
        self.reason = reason


def has_marks(text: str) -> bool:
    """Whether a string of a template is one that each row makes anew."""
    return any(mark in text for mark in _MARKS)


def syntax_problem(template: Mapping[str, Any], filter_: str | None) -> SyntaxProblem | None:
    """Why the template or the filter cannot be read; None if both can. Runs nothing of them."""
    environment = _environment()
    try:
        for param, text in _texts(template, "template", 0):
            _parsed(environment, param, text)
        if filter_ is not None:
            _parsed(environment, "filter", f"{{{{ {filter_} }}}}")
    except MalformedTemplateError as fault:
        return fault.problem
    return None


def used_names(template: Mapping[str, Any], filter_: str | None = None) -> dict[str, str]:
    """The names that a template and a filter use, each with its place. Runs nothing of them.

    Names that they define themselves are left out. Raises MalformedTemplateError.
    """
    environment, found = _environment(), dict[str, str]()
    texts = list(_texts(template, "template", 0))
    if filter_ is not None:
        texts.append(("filter", f"{{{{ {filter_} }}}}"))
    for param, text in texts:
        names = list(_parsed(environment, param, text).find_all(jinja2.nodes.Name))
        own = {one.name for one in names if one.ctx != "load"}
        for one in names:
            if one.name not in own:
                found.setdefault(one.name, param)
    return found


class RowTemplate:
    """Makes the body of each row's request. Raises MalformedTemplateError."""

    def __init__(self, template: Mapping[str, Any]) -> None:
        self._environment = _environment()
        #: The names that it uses: columns, and `ROW`.
        self.columns: set[str] = set()
        self._parts: list[bytes | _Leaf] = []
        self._add(template, "template", 0)

    def render(self, row: Mapping[str, Any]) -> bytes:
        """The body as JSON. Raises RowError."""
        return b"".join(
            [part if isinstance(part, bytes) else _encoded(part, row) for part in self._parts]
        )

    def _add(self, value: object, param: str, depth: int) -> None:
        if depth > _MAX_DEPTH:
            raise MalformedTemplateError(SyntaxProblem(param, "it is nested too deeply"))
        match value:
            case dict():
                self._constant(b"{")
                for number, (name, one) in enumerate(value.items()):
                    self._constant((b"," if number else b"") + msgspec.json.encode(name) + b":")
                    self._add(one, f"{param}.{name}", depth + 1)
                self._constant(b"}")
            case list():
                self._constant(b"[")
                for number, one in enumerate(value):
                    self._constant(b"," if number else b"")
                    self._add(one, f"{param}[{number}]", depth + 1)
                self._constant(b"]")
            case str() if has_marks(value):
                names = _names(self._environment, param, value)
                self.columns |= names
                self._parts.append(_Leaf(param, names, _compiled(self._environment, param, value)))
            case _:
                self._constant(json.dumps(value, ensure_ascii=False).encode())

    def _constant(self, text: bytes) -> None:
        if self._parts and isinstance(self._parts[-1], bytes):
            self._parts[-1] += text
        else:
            self._parts.append(text)


class RowFilter:
    """Says which rows are wanted. Raises MalformedTemplateError."""

    def __init__(self, expression: str) -> None:
        environment, text = _environment(), f"{{{{ {expression} }}}}"
        self.columns = _names(environment, "filter", text)
        value = _expression(environment, "filter", expression)
        self._leaf = _Leaf("filter", self.columns, value)

    def wants(self, row: Mapping[str, Any]) -> bool:
        """Whether the expression is true for the row. Raises RowError."""
        return bool(_value(self._leaf, row))


class _Leaf(NamedTuple):
    """A string of the template, as the function that gives its value for a row."""

    param: str
    names: set[str]
    value: Callable[[Mapping[str, Any]], object]


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        undefined=jinja2.StrictUndefined,
        finalize=_in_text,
        keep_trailing_newline=True,
        optimized=False,
        cache_size=0,
    )
    environment.filters["tojson"] = _to_json
    # So that every name is a column's.
    environment.globals.clear()
    return environment


def _in_text(value: object) -> object:
    """What stands for a value inside of a text."""
    if value is None:
        # Not the word None.
        return ""
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


def _to_json(value: object) -> str:
    # Times, decimals and bytes as `msgspec` writes them elsewhere.
    return json.dumps(value, ensure_ascii=False, default=msgspec.to_builtins)


def _texts(value: object, param: str, depth: int) -> Iterator[tuple[str, str]]:
    """The strings of a template with their places."""
    if depth > _MAX_DEPTH:
        raise MalformedTemplateError(SyntaxProblem(param, "it is nested too deeply"))
    match value:
        case dict():
            for name, one in value.items():
                yield from _texts(one, f"{param}.{name}", depth + 1)
        case list():
            for number, one in enumerate(value):
                yield from _texts(one, f"{param}[{number}]", depth + 1)
        case str():
            yield param, value
        case _:
            pass


def _parsed(environment: jinja2.Environment, param: str, text: str) -> jinja2.nodes.Template:
    try:
        return environment.parse(text)
    except jinja2.TemplateSyntaxError as error:
        raise MalformedTemplateError(SyntaxProblem(param, _reason(error))) from None
    except RecursionError:
        raise MalformedTemplateError(SyntaxProblem(param, "it is nested too deeply")) from None
    except ValueError:
        # Python reads no integer of thousands of digits.
        raise MalformedTemplateError(SyntaxProblem(param, "a number has too many digits")) from None


def _reason(error: jinja2.TemplateSyntaxError) -> str:
    where = f" (its line {error.lineno})" if error.lineno > 1 else ""
    return f"{_words(error)}{where}"


def _words(error: jinja2.TemplateError) -> str:
    """What Jinja says, without the full stop of some of its sentences."""
    return (error.message or "it is no template").rstrip(".")


def _names(environment: jinja2.Environment, param: str, text: str) -> set[str]:
    try:
        return meta.find_undeclared_variables(_parsed(environment, param, text))
    except jinja2.TemplateError as error:
        # For example, a filter that does not exist.
        raise MalformedTemplateError(SyntaxProblem(param, _words(error))) from None


def _compiled(
    environment: jinja2.Environment, param: str, text: str
) -> Callable[[Mapping[str, Any]], object]:
    if (alone := _ONE_EXPRESSION.fullmatch(text)) is not None:
        return _expression(environment, param, alone[1])
    try:
        return environment.from_string(text).render
    except (jinja2.TemplateError, RecursionError, SyntaxError) as error:
        raise MalformedTemplateError(SyntaxProblem(param, type(error).__name__)) from None


def _expression(
    environment: jinja2.Environment, param: str, text: str
) -> Callable[[Mapping[str, Any]], object]:
    try:
        return environment.compile_expression(text, undefined_to_none=False)
    except jinja2.TemplateSyntaxError as error:
        raise MalformedTemplateError(SyntaxProblem(param, _reason(error))) from None
    except (jinja2.TemplateError, RecursionError, SyntaxError) as error:
        raise MalformedTemplateError(SyntaxProblem(param, type(error).__name__)) from None


def _encoded(leaf: _Leaf, row: Mapping[str, Any]) -> bytes:
    value = _value(leaf, row)
    try:
        return msgspec.json.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError):
        raise RowError(leaf.param, f"a {type(value).__name__} is no value of JSON") from None


def _value(leaf: _Leaf, row: Mapping[str, Any]) -> object:
    """The leaf's value. The reason of a RowError quotes no value, which may be a prompt."""
    try:
        value = leaf.value(row)
    except jinja2.UndefinedError:
        raise RowError(leaf.param, _what_is_missing(leaf, row)) from None
    except TimeoutError:
        raise RowError(leaf.param, "rendering it takes too long") from None
    except MemoryError:
        raise RowError(leaf.param, "rendering it takes too much memory") from None
    except ROW_ERRORS as error:
        raise RowError(leaf.param, f"{type(error).__name__} while it was rendered") from None
    if isinstance(value, jinja2.Undefined):
        raise RowError(leaf.param, _what_is_missing(leaf, row))
    return value


def _what_is_missing(leaf: _Leaf, row: Mapping[str, Any]) -> str:
    # Jinja's own words may quote a value, by which something was looked for.
    if missing := sorted(leaf.names - row.keys()):
        return f"the row has no '{missing[0]}'"
    return "something that it names is not defined for this row"
