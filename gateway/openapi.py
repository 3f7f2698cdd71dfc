"""Completes FastAPI's OpenAPI document with what routes have in common.

These are errors, headers, examples and links, added by rules and from the tables of the
`openapi_*` modules. What is specific to one route is declared at the route, with `route_docs.py`.
"""

from collections.abc import Iterator
from typing import Any

from fastapi import FastAPI
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute

from gateway.auth import Tenant
from gateway.openapi_errors import ERRORS, REFUSALS
from gateway.openapi_examples import SCHEMAS, give_example
from gateway.openapi_headers import EVERYWHERE, HEADERS, OF_CALLERS, OF_STATUS
from gateway.openapi_settings import body_schemas
from gateway.openapi_words import ANSWERS, BODIES, CONFLICTS, DOWNLOADS, LINKS, OBJECTS, PARAMETERS
from gateway.route_docs import FORM_MEDIA, JSON_MEDIA, Json
from gateway.row_schemas import row_schemas
from gateway.settings import GatewaySettings
from gateway.stream_shapes import stream_schemas
from shared.openai.shapes import ErrorBody, ErrorEnvelope

_DESCRIPTION = (
    "OpenAI's Files, Uploads, Batches, Models and Webhooks APIs for models on your own machines. "
    "Any OpenAI client works with its `base_url` and key changed. Operations and fields that "
    "OpenAI does not have are marked with `x-batchyard`."
)
_KEY = "The tenant's API key, as `Authorization: Bearer sk-batchyard-…`."
_EVENTS = "text/event-stream"


def operation_id(route: APIRoute) -> str:
    """OpenAI's name of the operation: the function's, in their spelling."""
    first, *rest = route.name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def install(app: FastAPI, settings: GatewaySettings) -> None:
    """Make the app's document the complete one, and serve it to callers with a key."""
    plain = app.openapi

    def openapi() -> Json:
        if app.openapi_schema is None:
            app.openapi_schema = completed(plain(), settings)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's own way to extend it

    @app.get("/openapi.json", include_in_schema=False)
    async def document(_: Tenant) -> JSONResponse:
        return JSONResponse(openapi())


def completed(document: Json, settings: GatewaySettings) -> Json:
    """The document, completed in place."""
    bodies = body_schemas(settings)
    components = document.setdefault("components", {})
    schemas: Json = components.setdefault("schemas", {})
    _lift_definitions(document["paths"], schemas)
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    envelope = ErrorEnvelope.model_json_schema(
        mode="serialization", ref_template=SCHEMAS + "{model}"
    )
    schemas.update({**envelope.pop("$defs"), "ErrorEnvelope": envelope})
    template = SCHEMAS + "{model}"
    for name, schema in (stream_schemas(template) | row_schemas(template)).items():
        schemas.setdefault(name, schema)
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
        _replace_parts(operation, bodies.get(operation["operationId"], {}))
        _complete(path, method, operation, schemas, known)
    return document


def _operations(document: Json) -> Iterator[tuple[str, str, Json]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield path, method, operation


def _replace_parts(operation: Json, changes: Json) -> None:
    for media in operation.get("requestBody", {}).get("content", {}).values():
        schema: Json = media["schema"]
        for field, words in changes.get("properties", {}).items():
            schema["properties"][field] |= words
        schema |= {name: value for name, value in changes.items() if name != "properties"}


def _complete(path: str, method: str, operation: Json, schemas: Json, known: set[str]) -> None:
    name = operation["operationId"]
    for parameter in operation.get("parameters", ()):
        give_example(parameter, schemas, PARAMETERS.get(parameter["name"]))
    for media_type, media in operation.get("requestBody", {}).get("content", {}).items():
        give_example(media, schemas, BODIES.get(name))
        if media_type == FORM_MEDIA:
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
    """The errors that the operation can answer with; some have examples of their own."""
    responses: Json = operation["responses"]
    refusals = REFUSALS.get(operation["operationId"], {})
    for status in _statuses(method, operation) | refusals.keys():
        if status in refusals:
            responses[status] = _error(status, refusals[status])
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
    content = response.get("content", {})
    if _EVENTS in content and "requestBody" not in operation:
        # Up to OpenAPI 3.1, the schema of an event stream is that of each event.
        content[_EVENTS] = {"schema": {"$ref": f"{SCHEMAS}BatchStreamEvent"}}
    if JSON_MEDIA in content:
        answer = ANSWERS.get(operation["operationId"]) if status == "200" else None
        give_example(content[JSON_MEDIA], schemas, answer)


def _statuses(method: str, operation: Json) -> set[str]:
    """The statuses of the errors that the operation can answer with, from its parameters."""
    places = {parameter["in"] for parameter in operation.get("parameters", ())}
    found = {401, 403, 429, 500, 503}
    if "path" in places:
        found.add(404)
        if method == "post":
            # The object may have ended.
            found.add(409)
    if places - {"path"} or "requestBody" in operation:
        found.add(400)
    if "requestBody" in operation:
        found.add(413)
    if "404" in operation["responses"]:
        # The route says so itself.
        found.add(404)
    if operation["operationId"] in CONFLICTS:
        found.add(409)
    return {str(status) for status in found}


def _error(status: str, body: ErrorBody | None = None) -> Json:
    description, usual = ERRORS[status]
    example = ErrorEnvelope(error=body or usual).model_dump()
    return {
        "description": description,
        "headers": _headers((*EVERYWHERE, *OF_CALLERS, *OF_STATUS.get(status, ()))),
        "content": {
            JSON_MEDIA: {"schema": {"$ref": f"{SCHEMAS}ErrorEnvelope"}, "example": example}
        },
    }


def _headers(names: tuple[str, ...]) -> Json:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in names}


def _describe_form(media: Json) -> None:
    """Objects in forms are JSON; their fields may also come one by one."""
    for name, part in media["schema"].get("properties", {}).items():
        if part.get("type") == "object" or "$ref" in part:
            media.setdefault("encoding", {})[name] = {"contentType": JSON_MEDIA}
            part.setdefault(
                "description",
                f"One JSON part, or one part per field, `{name}[…]` or `{name}.…`.",
            )


def _lift_definitions(node: Any, schemas: Json) -> None:
    """Move the `$defs` of schemas inside the document to its components, so that refs hold."""
    if isinstance(node, dict):
        for name, definition in node.pop("$defs", {}).items():
            _lift_definitions(definition, schemas)
            schemas.setdefault(name, definition)
        if str(node.get("$ref", "")).startswith("#/$defs/"):
            node["$ref"] = SCHEMAS + node["$ref"].removeprefix("#/$defs/")
        for child in list(node.values()):
            _lift_definitions(child, schemas)
    elif isinstance(node, list):
        for child in node:
            _lift_definitions(child, schemas)
