"""The parts of the OpenAPI document that depend on this gateway's settings."""

from collections.abc import Mapping

from gateway.file_rules import BATCH_NAME_PATTERN, MAX_NAME_CHARACTERS, PURPOSES
from gateway.route_docs import Json
from gateway.settings import GatewaySettings
from shared.openai.endpoints import ENDPOINTS
from shared.outbound import url_pattern


def body_schemas(settings: GatewaySettings) -> Mapping[str, Json]:
    """By operation, the changes to the schema of its body."""
    limits = settings.metadata_limits
    window = {"type": "string", "enum": list(settings.completion_windows)}
    metadata = _nullable(
        {
            "type": "object",
            "maxProperties": limits.pairs,
            "propertyNames": {"maxLength": limits.key_characters},
            "additionalProperties": {"type": "string", "maxLength": limits.value_characters},
        }
    )
    url = {
        "type": "string",
        "maxLength": 2048,
        "pattern": url_pattern(is_http_allowed=settings.webhook_http),
        "description": "An absolute URL without a user, at a public address.",
    }
    return {
        "createBatch": _properties(
            endpoint={"enum": list(ENDPOINTS)}, completion_window=window, metadata=metadata
        )
        | {"anyOf": [_PLAIN_BATCH, _OPEN_BATCH]},
        "createPipeline": _properties(completion_window=window, metadata=metadata),
        "retryBatch": _properties(completion_window=_nullable(window), metadata=metadata),
        "updateBatch": _properties(metadata=metadata),
        "createWebhookEndpoint": _properties(url=url),
        "updateWebhookEndpoint": _properties(url=_nullable(url)),
        "createUpload": _upload(settings),
    }


#: An open batch has a model and no input; the requests of others name their models.
_PLAIN_BATCH: Json = {"properties": {"open": {"enum": [False]}, "model": {"enum": [None]}}}
_OPEN_BATCH: Json = {
    "required": ["open", "model"],
    "properties": {
        "open": {"enum": [True]},
        "model": {"type": "string"},
        "input_file_id": {"enum": [None]},
        "input": {"enum": [None]},
        "dry_run": {"enum": [False]},
    },
}


def _upload(settings: GatewaySettings) -> Json:
    """Inputs of batches have a smaller limit than other files, and names of their own."""
    largest = settings.max_assembled_bytes
    batch = _properties(
        purpose={"enum": ["batch"]},
        bytes={"maximum": min(largest, settings.max_upload_bytes)},
        filename={"pattern": BATCH_NAME_PATTERN},
    )
    other = _properties(purpose={"enum": [name for name in PURPOSES if name != "batch"]})
    limits = _properties(bytes={"maximum": largest}, filename={"maxLength": MAX_NAME_CHARACTERS})
    return limits | {"anyOf": [batch, other]}


def _properties(**properties: Json) -> Json:
    return {"properties": properties}


def _nullable(schema: Json) -> Json:
    return {"anyOf": [schema, {"type": "null"}]}
