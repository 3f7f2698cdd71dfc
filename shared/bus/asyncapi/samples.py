"""Made-up events for the examples, made from a made-up batch as real events are made."""

import json
from typing import Any

from cloudevents.core.bindings.rabbitmq import to_structured_event

from shared import ids
from shared.bus.event_shapes import EventType
from shared.bus.events import to_event
from shared.lifecycle import Status
from shared.openai.endpoints import ENDPOINTS
from shared.pipeline.declaration import Declaration
from shared.pipeline.shapes import to_shape
from shared.state.outbox import Entry

Json = dict[str, Any]

_TENANT = "acme"
_MESSAGE_ID = "order-17"
BATCH = ids.batch_id(_TENANT, _MESSAGE_ID)
CREATED_AT = 1_795_165_000
DAY = 86_400
_OUTPUT = {
    "bucket": "batchyard",
    "key": f"batches/{BATCH}/output.jsonl",
    "etag": "9b2cf535f27731c974343645a3985328",
    "size": 41_300,
    "sha256": "2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae",
}

_DECLARATION = {
    "input": {"file_id": "file-0123456789abcdefABCDEF", "columns": ["text"]},
    "stages": [
        {
            "call": {
                "endpoint": "/v1/chat/completions",
                "template": {
                    "model": "tiny-chat",
                    "messages": [{"role": "user", "content": "Sum up: {{ text }}"}],
                },
            }
        }
    ],
    "completion_window": "24h",
    "metadata": {"customer": "17"},
}
_SLICE = {"index": 0, "first_row": 0, "rows": 40, "completed": 40, "failed": 0}


def sample_event(name: str, event: EventType, sequence: int) -> Json:
    """The event of a made-up batch, made as each event is made."""
    snapshot = {
        "id": BATCH,
        "tenant": _TENANT,
        "endpoint": next(iter(ENDPOINTS)),
        "status": event.status or Status.IN_PROGRESS,
        "input_file_id": ids.input_file_id(BATCH),
        "created_at": str(CREATED_AT),
        "expires_at": str(CREATED_AT + DAY),
        "completion_window": "24h",
        "metadata": '{"customer":"17"}',
        "correlation_id": _MESSAGE_ID,
    }
    if event.status is Status.FAILED:
        snapshot["first_error"] = "The model 'tiny' is not served here."
    elif event.status is not Status.VALIDATING:
        snapshot |= {"model": "tiny-chat", "in_progress_at": str(CREATED_AT + 2), "total": "100"}
    if event.status is not Status.VALIDATING:
        snapshot[f"{snapshot['status']}_at"] = str(CREATED_AT + 2)
    if event.status is None:
        snapshot |= {"completed": "40", "input_tokens": "1200", "output_tokens": "3400"}
    if event.status is Status.COMPLETED:
        snapshot |= {
            "completed": "100",
            "input_tokens": "3000",
            "output_tokens": "8500",
            "output_file_id": ids.output_file_id(BATCH, "output"),
            "output_object": json.dumps(_OUTPUT),
        }
    entry = Entry(
        "1-0",
        {
            **({"slice": json.dumps(_SLICE)} if name.startswith("slice.") else {}),
            "type": name,
            "sequence": str(sequence),
            "at_ms": str(1000 * (CREATED_AT + 20)),
            "snapshot": json.dumps(snapshot),
        },
    )
    return _envelope(entry)


def sample_end(name: str) -> Json:
    """The event of a made-up pipeline."""
    pipeline_id, status = ids.pipeline_id(_TENANT, _MESSAGE_ID), name.partition(".")[2]
    declaration = Declaration.model_validate(_DECLARATION)
    fields = {
        "status": status,
        "created_at": str(CREATED_AT),
        "expires_at": str(CREATED_AT + DAY),
        "ended_at": str(CREATED_AT + 20),
        "read": "100",
        "rows": "98",
        "counts": '{"0":{"failed":2,"dropped":0}}',
        "output_file_id": ids.pipeline_file_id(pipeline_id, "output"),
        "error_file_id": ids.pipeline_file_id(pipeline_id, "error"),
    }
    if status == Status.FAILED:
        fields |= {"error_code": "input_changed", "error": "An object of the input has changed."}
    shown = to_shape(pipeline_id, fields, declaration, {}, {0: BATCH})
    snapshot = {"id": pipeline_id, "tenant": _TENANT, "status": status}
    entry = Entry(
        "1-0",
        {
            "type": name,
            "sequence": "1",
            "at_ms": str(1000 * (CREATED_AT + 20)),
            "pipeline": shown.model_dump_json(),
            "snapshot": json.dumps(snapshot),
        },
    )
    return _envelope(entry)


def _envelope(entry: Entry) -> Json:
    envelope: Json = json.loads(to_structured_event(to_event(entry)).body)
    return envelope
