"""Examples for the OpenAPI document, made from its schemas. Pure."""

from typing import Any

from gateway.route_docs import Json

SCHEMAS = "#/components/schemas/"


def sample(  # noqa: C901, PLR0911, PLR0912  # one case per kind of schema, as flat as a table
    schema: Json, schemas: Json
) -> Any:
    """A value that the schema allows, taken from its examples where it has any."""
    if "$ref" in schema:
        return sample(schemas[schema["$ref"].removeprefix(SCHEMAS)], schemas)
    for known in ("examples", "enum"):
        if schema.get(known):
            return schema[known][0]
    for known in ("example", "const", "default"):
        if known in schema:
            return schema[known]
    for choice in ("anyOf", "oneOf", "allOf"):
        if choice in schema:
            return sample(schema[choice][0], schemas)
    match schema.get("type"):
        case "object":
            wanted = schema.get("required", ())
            properties = schema.get("properties", {})
            return _paged({name: sample(properties[name], schemas) for name in wanted})
        case "array":
            return [sample(schema["items"], schemas)] if "items" in schema else []
        case "integer" | "number":
            return schema.get("minimum", 0)
        case "boolean":
            return False
        case "null":
            return None
        case _:
            return "text"


def give_example(place: Json, schemas: Json, value: object = None) -> None:
    """Add an example to a parameter or a body that has none; `value` if that is given."""
    if "examples" in place or "schema" not in place:
        return
    if "example" not in place:
        place["example"] = sample(place["schema"], schemas) if value is None else value
    place["example"] = _with_nulls(place["example"], place["schema"], schemas)


def _with_nulls(value: Any, schema: Json, schemas: Json) -> Any:
    """The example with the required nulls that FastAPI removes from what routes give."""
    if "$ref" in schema:
        return _with_nulls(value, schemas[schema["$ref"].removeprefix(SCHEMAS)], schemas)
    if "anyOf" in schema:
        # A nullable value names its schema first.
        return _with_nulls(value, schema["anyOf"][0], schemas)
    if isinstance(value, list):
        return [_with_nulls(one, schema.get("items", {}), schemas) for one in value]
    if not isinstance(value, dict):
        return value
    shapes = schema.get("properties", {})
    whole = {name: None for name in schema.get("required", ()) if name in shapes} | value
    return {name: _with_nulls(one, shapes.get(name, {}), schemas) for name, one in whole.items()}


def _paged(value: Json) -> Json:
    """The page with the ids of its first and last object."""
    if {"data", "first_id", "last_id"} <= value.keys() and value["data"]:
        value["first_id"] = value["last_id"] = value["data"][0]["id"]
        value["has_more"] = False
    return value
