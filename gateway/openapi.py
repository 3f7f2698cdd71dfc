"""What the OpenAPI document says of every operation alike: errors, headers, examples, links.

An operation gets all of it by rules. What its own decorator says (`responses`, `openapi_extra`)
and the examples of its own shapes (`json_schema_extra`) are kept.
"""

from collections.abc import Iterator
from typing import Any

from fastapi import FastAPI
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute

from gateway.auth import Tenant
from gateway.openapi_words import (
    BODIES,
    CONFLICTS,
    DOWNLOADS,
    ERRORS,
    EVERYWHERE,
    FIELDS,
    HEADERS,
    LINKS,
    OBJECTS,
    OF_CALLERS,
    OF_STATUS,
    PARAMETERS,
    Json,
)
from shared.openai.shapes import ErrorEnvelope

_DESCRIPTION = (
    "OpenAI's Files, Batches and Models API for models on machines of one's own. Any OpenAI client "
    "works with `base_url` and key changed. Operations and fields that OpenAI does not have carry "
    "`x-batchyard`."
)
_KEY = "The tenant's API key, as `Authorization: Bearer sk-batchyard-…`."
_SCHEMAS = "#/components/schemas/"
_JSON = "application/json"
_FORM = "multipart/form-data"
_EVENTS = "text/event-stream"


def operation_id(route: APIRoute) -> str:
    """OpenAI's name of the operation: the function's, in their spelling."""
    first, *rest = route.name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def install(app: FastAPI) -> None:
    """Let the app's document be the complete one, served to who has a key."""
    plain = app.openapi

    def openapi() -> Json:
        if app.openapi_schema is None:
            app.openapi_schema = completed(plain())
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's own way to extend it

    @app.get("/openapi.json", include_in_schema=False)
    async def document(_: Tenant) -> JSONResponse:
        return JSONResponse(openapi())


def completed(document: Json) -> Json:
    """The document, changed in place, with everything that is the same for all operations."""
    components = document.setdefault("components", {})
    schemas: Json = components.setdefault("schemas", {})
    _lift_definitions(document["paths"], schemas)
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    envelope = ErrorEnvelope.model_json_schema(
        mode="serialization", ref_template=_SCHEMAS + "{model}"
    )
    schemas.update({**envelope.pop("$defs"), "ErrorEnvelope": envelope})
    for name, value in OBJECTS.items():
        if name in schemas:
            schemas[name].setdefault("examples", [value])
    components["headers"] = dict(HEADERS)
    components["responses"] = {f"Error{status}": _error(status) for status in ERRORS}
    for scheme in components.get("securitySchemes", {}).values():
        scheme.setdefault("description", _KEY)
    document["info"].setdefault("description", _DESCRIPTION)
    operations = list(_operations(document))
    known = {operation["operationId"] for _, _, operation in operations}
    for path, method, operation in operations:
        _complete(path, method, operation, schemas, known)
    return document


def sample(  # noqa: C901, PLR0911, PLR0912  # one case a kind of schema, as flat as a table
    schema: Json, schemas: Json
) -> Any:
    """A value that the schema allows, with its own examples where it has them."""
    if "$ref" in schema:
        return sample(schemas[schema["$ref"].removeprefix(_SCHEMAS)], schemas)
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


def _operations(document: Json) -> Iterator[tuple[str, str, Json]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield path, method, operation


def _complete(path: str, method: str, operation: Json, schemas: Json, known: set[str]) -> None:
    name = operation["operationId"]
    for parameter in operation.get("parameters", ()):
        _give_example(parameter, schemas, PARAMETERS.get(parameter["name"]))
    for media_type, media in operation.get("requestBody", {}).get("content", {}).items():
        for field, words in FIELDS.get(name, {}).items():
            media["schema"]["properties"][field].update(words)
        _give_example(media, schemas, BODIES.get(name))
        if media_type == _FORM:
            _describe_form(media)
    responses = operation["responses"]
    responses.pop("422", None)
    if "security" in operation:
        operation.setdefault("tags", [path.split("/")[2]])
        _add_errors(method, operation)
    for status, response in responses.items():
        if "$ref" not in response:
            _complete_response(status, operation, response, schemas)
    if links := {to: link for to, link in LINKS.get(name, {}).items() if to in known}:
        responses["200"]["links"] = {to: {"operationId": to, **link} for to, link in links.items()}


def _add_errors(method: str, operation: Json) -> None:
    """The errors that the operation can answer with; the decorator's own words for one are kept."""
    responses: Json = operation["responses"]
    for status in sorted(_statuses(method, operation)):
        said = responses.get(status, {})
        if any(
            "example" in media or "examples" in media for media in said.get("content", {}).values()
        ):
            said["content"][_JSON].setdefault("schema", {"$ref": f"{_SCHEMAS}ErrorEnvelope"})
        else:
            responses[status] = {"$ref": f"#/components/responses/Error{status}"}
    operation["responses"] = dict(sorted(responses.items()))


def _complete_response(status: str, operation: Json, response: Json, schemas: Json) -> None:
    headers = (*EVERYWHERE, *OF_STATUS.get(status, ()))
    if "security" in operation:
        headers += OF_CALLERS
    if status == "200" and operation["operationId"] in DOWNLOADS:
        binary = {"schema": {"type": "string", "format": "binary"}}
        response["content"] = {"application/octet-stream": binary}
        headers += ("content-disposition",)
    response.setdefault("headers", {}).update(_headers(headers))
    # Of one event, where FastAPI says what the whole stream is: a text.
    response.get("content", {}).get(_EVENTS, {}).pop("schema", None)
    if _JSON in response.get("content", {}):
        _give_example(response["content"][_JSON], schemas)


def _statuses(method: str, operation: Json) -> set[str]:
    """The statuses of its errors, by what it takes and by what its decorator says."""
    places = {parameter["in"] for parameter in operation.get("parameters", ())}
    found = {401, 429, 500, 503}
    if "path" in places:
        found.add(404)
        if method == "post":
            # What is there may have ended.
            found.add(409)
    if places - {"path"} or "requestBody" in operation:
        found.add(400)
    if "requestBody" in operation:
        found.add(413)
    if operation["operationId"] in CONFLICTS:
        found.add(409)
    said = {status for status in ERRORS if status in operation["responses"]}
    return {str(status) for status in found} | said


def _error(status: str) -> Json:
    description, body = ERRORS[status]
    example = ErrorEnvelope(error=body).model_dump()
    return {
        "description": description,
        "headers": _headers((*EVERYWHERE, *OF_CALLERS, *OF_STATUS.get(status, ()))),
        "content": {_JSON: {"schema": {"$ref": f"{_SCHEMAS}ErrorEnvelope"}, "example": example}},
    }


def _headers(names: tuple[str, ...]) -> Json:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in names}


def _give_example(place: Json, schemas: Json, value: object = None) -> None:
    """An example for a parameter or a body that has none yet."""
    if "examples" in place or "schema" not in place:
        return
    if "example" not in place:
        place["example"] = sample(place["schema"], schemas) if value is None else value
    place["example"] = _with_nulls(place["example"], place["schema"], schemas)


def _with_nulls(value: Any, schema: Json, schemas: Json) -> Any:
    """The example with its required nulls, which FastAPI leaves out of what decorators say."""
    if "$ref" in schema:
        return _with_nulls(value, schemas[schema["$ref"].removeprefix(_SCHEMAS)], schemas)
    if "anyOf" in schema:
        # What may be null names its shape first.
        return _with_nulls(value, schema["anyOf"][0], schemas)
    if isinstance(value, list):
        return [_with_nulls(one, schema.get("items", {}), schemas) for one in value]
    if not isinstance(value, dict):
        return value
    shapes = schema.get("properties", {})
    whole = {name: None for name in schema.get("required", ()) if name in shapes} | value
    return {name: _with_nulls(one, shapes.get(name, {}), schemas) for name, one in whole.items()}


def _describe_form(media: Json) -> None:
    """Objects in forms are JSON; what they hold may as well come field by field."""
    for name, part in media["schema"].get("properties", {}).items():
        if part.get("type") == "object" or "$ref" in part:
            media.setdefault("encoding", {})[name] = {"contentType": _JSON}
            part.setdefault(
                "description",
                f"One JSON part, or one part a field, `{name}[…]` or `{name}.…`.",
            )


def _lift_definitions(node: Any, schemas: Json) -> None:
    """Move the `$defs` of schemas inside the document to its components, so that refs hold."""
    if isinstance(node, dict):
        for name, definition in node.pop("$defs", {}).items():
            _lift_definitions(definition, schemas)
            schemas.setdefault(name, definition)
        if str(node.get("$ref", "")).startswith("#/$defs/"):
            node["$ref"] = _SCHEMAS + node["$ref"].removeprefix("#/$defs/")
        for child in list(node.values()):
            _lift_definitions(child, schemas)
    elif isinstance(node, list):
        for child in node:
            _lift_definitions(child, schemas)


def _paged(value: Json) -> Json:
    """A page whose ends are the ids of what it holds."""
    if {"data", "first_id", "last_id"} <= value.keys() and value["data"]:
        value["first_id"] = value["last_id"] = value["data"][0]["id"]
        value["has_more"] = False
    return value
