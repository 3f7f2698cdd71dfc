"""The shape that a JSON schema gives an answer, as far as a table's types can say it. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

import msgspec

from shared.errors import BatchyardError

Kind = Literal["text", "integer", "number", "boolean", "list", "object", "json"]

_KINDS: Mapping[str, Kind] = {
    "string": "text",
    "integer": "integer",
    "number": "number",
    "boolean": "boolean",
    "array": "list",
    "object": "object",
}
_KIND_OF_VALUE: Mapping[type, Kind] = {str: "text", bool: "boolean", int: "integer"}
#: Deeper values, as those of a schema that refers to itself, become JSON text.
_MAX_DEPTH = 16
#: Parts of a schema, each counted as often as others refer to it.
_MAX_PARTS = 10_000
_INTEGERS = range(-(2**63), 2**63)


class MalformedSchemaError(BatchyardError):
    """A JSON schema that cannot be read."""


class MisfitError(BatchyardError):
    """A value that has another shape. Names its place, and quotes nothing of it."""


class Shape(msgspec.Struct, frozen=True):
    """What a value is: of one kind, or null if it may be.

    `items` are those of a list, `fields` those of an object; those that are not `required` may be
    missing. Values of the kind `json` have several kinds, or any.
    """

    kind: Kind
    is_nullable: bool = False
    items: "Shape | None" = None
    fields: dict[str, "Shape"] = {}
    required: frozenset[str] = frozenset()


class _Root(NamedTuple):
    """The whole schema, and how many parts may still be read."""

    schema: Mapping[str, Any]
    left: Iterator[int]


def shape_of(schema: Mapping[str, Any]) -> Shape:
    """The shape of the values that the schema allows. Raises MalformedSchemaError."""
    return _shape(schema, _Root(schema, iter(range(_MAX_PARTS))), 0)


def fitted(value: object, shape: Shape, place: str = "the answer") -> Any:
    """The value as the table holds it. Raises MisfitError."""
    if value is None:
        if not shape.is_nullable and shape.kind != "json":
            raise MisfitError(f"{place} is null")
        return None
    match shape.kind, value:
        case "json", _:
            return msgspec.json.encode(value).decode()
        case "list", list() if shape.items is not None:
            items = shape.items
            return [fitted(one, items, f"{place}[{n}]") for n, one in enumerate(value)]
        case "object", dict():
            return {
                name: _field(value, name, field, shape, f"{place}.{name}")
                for name, field in shape.fields.items()
            }
        case _:
            return _scalar(value, shape.kind, place)


def _scalar(value: object, kind: Kind, place: str) -> Any:
    match kind, value:
        case "text", str():
            return _text(value, place)
        case "boolean", bool():
            return value
        case "integer", int() if not isinstance(value, bool) and value in _INTEGERS:
            return value
        case "integer", float() if value.is_integer() and int(value) in _INTEGERS:
            return int(value)
        case "number", int() | float() if not isinstance(value, bool):
            return _number(value, place)
        case _:
            raise MisfitError(f"{place} is not of the kind '{kind}'")


def _text(value: str, place: str) -> str:
    """The text, if there are bytes for it: JSON can escape half of a surrogate pair."""
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise MisfitError(f"{place} has half of a surrogate pair, which is no character") from error
    return value


def _number(value: float, place: str) -> float:
    try:
        return float(value)
    except OverflowError as error:
        raise MisfitError(f"{place} is too large for a number") from error


def _field(value: dict[str, Any], name: str, field: Shape, shape: Shape, place: str) -> Any:
    if name in value:
        return fitted(value[name], field, place)
    if name in shape.required:
        raise MisfitError(f"{place} is missing")
    return None


def _shape(schema: object, root: _Root, depth: int) -> Shape:
    if depth > _MAX_DEPTH or schema is True or schema == {}:
        return Shape("json", is_nullable=True)
    if not isinstance(schema, dict):
        raise MalformedSchemaError("a schema must be an object")
    if next(root.left, None) is None:
        reason = f"it has more than {_MAX_PARTS} parts, counted as often as others refer to them"
        raise MalformedSchemaError(reason)
    if "$ref" in schema:
        return _shape(_referred(schema["$ref"], root.schema), root, depth + 1)
    for name in {"anyOf", "oneOf", "allOf"} & schema.keys():
        return _of_several(schema[name], root, depth)
    kind, is_nullable = _kind(schema)
    if kind == "list":
        return Shape(kind, is_nullable, items=_shape(schema.get("items", {}), root, depth + 1))
    if kind == "object":
        return _object(schema, root, depth, is_nullable=is_nullable)
    return Shape(kind, is_nullable)


def _object(schema: Mapping[str, Any], root: _Root, depth: int, *, is_nullable: bool) -> Shape:
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if not isinstance(properties, dict):
        raise MalformedSchemaError("'properties' must be an object")
    if not isinstance(required, list) or not all(isinstance(one, str) for one in required):
        raise MalformedSchemaError("'required' must be a list of names")
    if not properties:
        # Nothing says which fields it has.
        return Shape("json", is_nullable)
    fields = {name: _shape(one, root, depth + 1) for name, one in properties.items()}
    return Shape("object", is_nullable, fields=fields, required=frozenset(required))


def _kind(schema: Mapping[str, Any]) -> tuple[Kind, bool]:
    """The kind, and whether it may be null."""
    types = schema.get("type")
    if types is None:
        return _kind_of_values(schema)
    names = [types] if isinstance(types, str) else types
    if not isinstance(names, list) or not {*names} <= {*_KINDS, "null"}:
        raise MalformedSchemaError(f"'type' must be of {', '.join([*_KINDS, 'null'])}")
    kinds = {_KINDS[name] for name in names if name != "null"}
    if kinds == {"integer", "number"}:
        kinds = {"number"}
    return kinds.pop() if len(kinds) == 1 else "json", "null" in names


def _kind_of_values(schema: Mapping[str, Any]) -> tuple[Kind, bool]:
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if "properties" in schema:
        return "object", False
    if not isinstance(values, list):
        return "json", True
    kinds = {_KIND_OF_VALUE.get(type(value), "json") for value in values if value is not None}
    return kinds.pop() if len(kinds) == 1 else "json", None in values


def _of_several(schemas: object, root: _Root, depth: int) -> Shape:
    """One shape, perhaps nullable, or any value."""
    if not isinstance(schemas, list) or not schemas:
        raise MalformedSchemaError("'anyOf', 'oneOf' and 'allOf' must be lists of schemas")
    others = [one for one in schemas if one != {"type": "null"}]
    shapes = {_key(one): one for one in (_shape(one, root, depth + 1) for one in others)}
    if len(shapes) != 1:
        return Shape("json", is_nullable=True)
    [shape] = shapes.values()
    is_nullable = shape.is_nullable or len(others) < len(schemas)
    return msgspec.structs.replace(shape, is_nullable=is_nullable)


def _key(shape: Shape) -> bytes:
    return msgspec.json.encode(shape)


def _referred(ref: object, root: Mapping[str, Any]) -> object:
    if not isinstance(ref, str) or not ref.startswith("#"):
        raise MalformedSchemaError("a '$ref' must begin with '#': other documents are not read")
    found: object = root
    for step in ref.removeprefix("#").lstrip("/").split("/"):
        if not step:
            continue
        name = step.replace("~1", "/").replace("~0", "~")
        if not isinstance(found, dict) or name not in found:
            raise MalformedSchemaError(f"the '$ref' {ref[:100]} names nothing")
        found = found[name]
    return found
