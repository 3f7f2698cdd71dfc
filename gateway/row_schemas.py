"""The lines of a batch's input, as schemas for the OpenAPI document. Pure."""

from typing import Any

from shared.openai.endpoints import ENDPOINTS, Endpoint


def row_schemas(ref_template: str) -> dict[str, Any]:
    """`ChatRow` and its like, a line for each endpoint, and the schemas that they need."""
    schemas: dict[str, Any] = {}
    for endpoint in ENDPOINTS.values():
        body = endpoint.body.model_json_schema(ref_template=ref_template)
        schemas |= body.pop("$defs", {})
        row = _row(endpoint, body)
        schemas[row["title"]] = row
    return schemas


def _row(endpoint: Endpoint, body: dict[str, Any]) -> dict[str, Any]:
    known = body["properties"]
    return {
        "title": body["title"].replace("Body", "Row"),
        "description": f"One line of an input for {endpoint.path}.",
        "type": "object",
        "required": ["custom_id", "method", "url", "body"],
        "properties": {
            "custom_id": {"type": "string", "minLength": 1},
            "method": {"type": "string", "enum": ["POST"]},
            "url": {"type": "string", "enum": [endpoint.path]},
            "body": {
                "type": "object",
                "description": "Other fields are refused, unless the operator opens them for a "
                "model.",
                "required": sorted({"model", endpoint.content}),
                "properties": {name: known.get(name, {}) for name in sorted(endpoint.fields)},
                "additionalProperties": False,
            },
        },
    }
