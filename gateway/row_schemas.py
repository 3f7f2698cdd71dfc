"""The lines of a batch's input, as schemas for the OpenAPI document. Pure."""

from collections.abc import Sequence
from typing import Any

from shared.openai.endpoints import ENDPOINTS, Endpoint


def row_schemas(ref_template: str) -> dict[str, Any]:
    """`ChatRow` and its like, a line for each kind of body, and the schemas that they need."""
    schemas: dict[str, Any] = {}
    for kind in dict.fromkeys(endpoint.body for endpoint in ENDPOINTS.values()):
        body = kind.model_json_schema(ref_template=ref_template)
        schemas |= body.pop("$defs", {})
        row = _row([one for one in ENDPOINTS.values() if one.body is kind], body)
        schemas[row["title"]] = row
    return schemas


def live_schema(endpoint: Endpoint, ref_template: str) -> dict[str, Any]:
    """The body of a live call: that of a row, whose other schemas `row_schemas` has."""
    body = endpoint.body.model_json_schema(ref_template=ref_template)
    return _body(endpoint, body["properties"])


def _row(endpoints: Sequence[Endpoint], body: dict[str, Any]) -> dict[str, Any]:
    known, first = body["properties"], endpoints[0]
    paths = [endpoint.path for endpoint in endpoints]
    return {
        "title": body["title"].replace("Body", "Row"),
        "description": f"One line of an input for {' or '.join(paths)}.",
        "type": "object",
        "required": ["custom_id", "method", "url", "body"],
        "properties": {
            "custom_id": {"type": "string", "minLength": 1},
            "method": {"type": "string", "enum": ["POST"]},
            "url": {"type": "string", "enum": paths},
            "body": _body(first, known),
        },
    }


def _body(endpoint: Endpoint, known: dict[str, Any]) -> dict[str, Any]:
    # The SDK's and vLLM's own types let the model be left out.
    known = known | {"model": {"type": "string", "minLength": 1}}
    return {
        "type": "object",
        "description": "Other fields are refused, unless the operator opens them for a model.",
        **_required(endpoint),
        "properties": {name: known.get(name, {}) for name in sorted(endpoint.fields)},
        "additionalProperties": False,
    }


def _required(endpoint: Endpoint) -> dict[str, Any]:
    """The model, and the content in one of the forms that an open field can have."""
    forms = [form for form in endpoint.forms if endpoint.fields.issuperset(form)]
    if len(forms) == 1:
        return {"required": sorted({"model", *forms[0]})}
    return {"required": ["model"], "anyOf": [{"required": sorted(form)} for form in forms]}
