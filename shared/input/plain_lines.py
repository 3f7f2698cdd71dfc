"""Decodes the lines that are plainly right, several times as fast as the check of any line. Pure.

Everything about such a line is checked in C by msgspec. The types are the strict part of what
`shared.openai.bodies` accepts: a line that does not fit them is not wrong yet, it is looked at
again, field by field.
"""

import types
from collections.abc import Iterator
from functools import lru_cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec
from pydantic.fields import FieldInfo

from shared.openai.bodies import ResponseFormat, Tool
from shared.openai.endpoints import ENDPOINTS, Endpoint
from shared.openai.ignored_fields import IGNORED

#: Entries of a list in a plain line; the limits of a model may be lower than those of a longer one.
MAX_PLAIN_LIST = 4
_COUNT = Annotated[int, msgspec.Meta(gt=0, lt=2**31)]
_PLAIN_TYPES = (bool, int, float, str)


class _Message(msgspec.Struct, gc=False):
    role: str
    content: str
    name: str | None = None
    tool_calls: None = None


class _TextFormat(
    msgspec.Struct, tag_field="type", tag="text", forbid_unknown_fields=True, gc=False
):
    json_schema: None = None


class _JsonFormat(
    msgspec.Struct, tag_field="type", tag="json_object", forbid_unknown_fields=True, gc=False
):
    json_schema: None = None


class _JsonSchema(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    name: str
    schema: dict[str, msgspec.Raw]
    description: str | None = None
    strict: bool | None = None


class _SchemaFormat(
    msgspec.Struct, tag_field="type", tag="json_schema", forbid_unknown_fields=True, gc=False
):
    json_schema: _JsonSchema


class _Function(msgspec.Struct, gc=False):
    name: str
    description: str | None = None
    parameters: dict[str, msgspec.Raw] | None = None
    strict: bool | None = None


class _Tool(msgspec.Struct, gc=False):
    function: _Function
    type: Literal["function"] = "function"


#: The usual forms of fields that are objects, by the field's type.
_OBJECTS: dict[Any, Any] = {
    ResponseFormat: _TextFormat | _JsonFormat | _SchemaFormat,
    list[Tool]: Annotated[list[_Tool], msgspec.Meta(min_length=1)],
}
#: The usual forms of a prompt, by the endpoint's kind of prompt.
_CONTENTS: dict[str, Any] = {
    "messages": list[_Message],
    "items": str,
    "texts": Annotated[str, msgspec.Meta(min_length=1)] | list[str],
}
#: Endpoints with plain lines. Pairs are counted in ways of their own, and Anthropic's messages have
#: roles of their own.
PLAIN_PATHS = frozenset(
    path
    for path, one in ENDPOINTS.items()
    if one.prompt in _CONTENTS and (one.is_openais or one.prompt == "texts")
)


@lru_cache(maxsize=128)
def plain_decoder(path: str, model: str, max_custom_id: int) -> msgspec.json.Decoder[Any]:
    """A decoder of the endpoint's lines for the model; it raises for all lines that are not plain.

    Fields of the body are given back under their names; those of `Endpoint.output_limits` and `n`
    are counts or None.
    """
    endpoint = ENDPOINTS[path]
    body = msgspec.defstruct(
        "_PlainBody",
        [
            ("model", Literal[model]),
            (endpoint.content, _CONTENTS[endpoint.prompt]),
            ("stream", bool | None, None),
            *_other_fields(endpoint),
        ],
        # Of the others some are refused, so each of them is looked at.
        forbid_unknown_fields=True,
        gc=False,
    )
    line = msgspec.defstruct(
        "_PlainLine",
        [
            ("custom_id", Annotated[str, msgspec.Meta(min_length=1, max_length=max_custom_id)]),
            ("method", Literal["POST"]),
            ("url", Literal[path]),
            ("body", body),
        ],
        gc=False,
    )
    return msgspec.json.Decoder(line)


def has_plain_constraint(body: Any) -> bool:
    """Whether the engine compiles something for this decoded body before it runs."""
    form = getattr(body, "response_format", None)
    return bool(getattr(body, "tools", None)) or getattr(form, "json_schema", None) is not None


def _other_fields(endpoint: Endpoint) -> Iterator[tuple[str, Any, Any]]:
    fields = endpoint.body.model_fields
    # The check of any line counts those that are asked for in vain.
    unread = endpoint.body.unread - fields.keys() - IGNORED.keys()
    for name in sorted(unread - {"stream", endpoint.body.exempting}):
        yield name, msgspec.Raw, msgspec.Raw()
    for name, field in fields.items():
        if name in ("model", "stream", endpoint.content, *endpoint.body.closed):
            continue
        if name in endpoint.output_limits:
            yield name, _COUNT | None, None
        elif name in endpoint.body.compared:
            yield name, _default_only(field), None
        else:
            yield name, _union_of(_plain_kinds(field)), None


def _default_only(field: FieldInfo) -> Any:
    """A field that is compared with others is plain if it says no more than it does when absent."""
    is_literal = isinstance(field.default, int | str) and not isinstance(field.default, bool)
    kinds = [Literal[field.default]] if is_literal else []
    return _union_of([*kinds, *(kind for kind in get_args(field.annotation) if kind is _NULL)])


_NULL = type(None)
#: A type without values, for fields that are never plain.
_NOTHING = Annotated[str, msgspec.Meta(min_length=1, max_length=0)]


def _plain_kinds(field: FieldInfo) -> list[Any]:
    is_union = get_origin(field.annotation) in (Union, types.UnionType)
    kinds = get_args(field.annotation) if is_union else (field.annotation,)
    found = (_plain_kind(kind, field.metadata) for kind in kinds)
    return [kind for kind in found if kind is not None]


def _plain_kind(kind: Any, limits: list[Any]) -> Any:
    """The strict part of one of a field's types; None if there is none."""
    if get_origin(kind) is Annotated:
        kind, *annotations = get_args(kind)
        for annotation in annotations:
            limits = [*limits, *(getattr(annotation, "metadata", None) or [annotation])]
    if kind in _OBJECTS:
        return _OBJECTS[kind]
    if kind is _NULL or get_origin(kind) is Literal:
        return kind
    if get_origin(kind) is list:
        [inner] = get_args(kind)
        inner = _plain_kind(inner, [])
        longest = msgspec.Meta(max_length=MAX_PLAIN_LIST)
        return None if inner is None else Annotated[list[inner], longest]  # type: ignore[valid-type]
    return _bounded(kind, limits) if kind in _PLAIN_TYPES else None


def _bounded(kind: type, limits: list[Any]) -> Any:
    """The type with pydantic's limits as msgspec's; None if one of them is Python code."""
    names = ("ge", "gt", "le", "lt", "min_length", "max_length")
    bounds = {}
    for limit in limits:
        known = {name: getattr(limit, name, None) for name in names}
        known = {name: value for name, value in known.items() if value is not None}
        if not known:
            return None
        bounds.update(known)
    return Annotated[kind, msgspec.Meta(**bounds)] if bounds else kind


def _union_of(kinds: list[Any]) -> Any:
    return Union[tuple(kinds)] if kinds else _NOTHING  # noqa: UP007  # made at run time
