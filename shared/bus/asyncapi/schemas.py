"""The messages' bodies as JSON schemas."""

from typing import Any

from shared.bus import live_messages, messages
from shared.bus.asyncapi.message_list import all_messages
from shared.openai.endpoints import ENDPOINTS

_DIALECT = "https://json-schema.org/draft/2020-12/schema"

Json = dict[str, Any]


def schemas() -> dict[str, Json]:
    """A JSON schema by the message's type, each complete in itself."""
    return {
        message.name: {
            "$schema": _DIALECT,
            "$id": message.name,
            **shape(message.shape.__name__, message.shape.model_json_schema(mode=message.mode)),
        }
        for message in all_messages()
    }


def shape(title: str, schema: Json) -> Json:
    """A model's schema as we show it."""
    plain: Json = _plain(schema)
    if title in (messages.Submission.__name__, live_messages.LiveRequest.__name__):
        # The message's class accepts any text here: who takes it checks it and words the refusal.
        plain["properties"]["endpoint"]["enum"] = list(ENDPOINTS)
    return plain


def _plain(schema: Any) -> Any:
    """A pydantic schema without titles of fields, and without what only OpenAPI knows."""
    if isinstance(schema, list):
        return [_plain(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    made: Json = {}
    for key, value in schema.items():
        match key:
            case "discriminator":
                continue
            case "title" if "properties" not in schema:
                continue
            case "default" if value is None:
                continue
            case "properties" | "$defs":
                made[key] = {name: _plain(one) for name, one in value.items()}
            case "default" | "const" | "enum" | "examples":
                made[key] = value
            case _:
                made[key] = _plain(value)
    return made
