"""The events of a batch's HTTP stream, as schemas for the OpenAPI document. Pure."""

from typing import Any

from pydantic import Field

from shared.bus.event_shapes import EVENT_TYPES, BatchState

_NAMES = [name for name in EVENT_TYPES if name.startswith("batch.")]


class WatchedBatch(BatchState):
    """The data of one event: the whole batch as it is then."""

    type: str = Field(
        description="The name of the event.", json_schema_extra={"enum": list(_NAMES)}
    )
    sequence: int = Field(ge=0, description="Rises with each event of the batch.")
    paused: bool
    priority: int


def stream_schemas(ref_template: str) -> dict[str, Any]:
    """`BatchStreamEvent`, which is one event of the stream, and the schemas that it needs."""
    watched = WatchedBatch.model_json_schema(mode="serialization", ref_template=ref_template)
    # Streams hide where objects are stored, and SDKs treat a key `error` as a broken stream.
    for name in ("errors", "output", "error"):
        watched["properties"].pop(name, None)
    definitions = watched.pop("$defs", {})
    definitions.pop("StoredObject", None)
    event = {
        "title": "BatchStreamEvent",
        "description": "One server-sent event.",
        "type": "object",
        "required": ["event", "id", "data"],
        "properties": {
            "event": {"type": "string", "enum": list(_NAMES)},
            "id": {"type": "string", "pattern": "^[0-9]+$", "description": "The sequence number."},
            "data": {
                "type": "string",
                "contentMediaType": "application/json",
                "contentSchema": {"$ref": ref_template.format(model="WatchedBatch")},
            },
        },
    }
    return {**definitions, "WatchedBatch": watched, "BatchStreamEvent": event}
