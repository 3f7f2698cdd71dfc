"""Tables of the OpenAPI document: examples by object and operation, and links. Pure."""

from collections.abc import Mapping
from typing import Any

from shared.lifecycle import Status
from shared.openai.shapes import (
    Batch,
    File,
    Model,
    RequestCounts,
    UploadPart,
)

Json = dict[str, Any]


#: Where answers have the id of what they made, and of the first object that they list.
_ID, _FIRST = "$response.body#/id", "$response.body#/data/0/id"
_OF_A_BATCH = (
    "retrieveBatch",
    "cancelBatch",
    "pauseBatch",
    "resumeBatch",
    "updateBatch",
    "explainBatch",
    "readResults",
)
_OF_A_WEBHOOK_ENDPOINT = (
    "retrieveWebhookEndpoint",
    "updateWebhookEndpoint",
    "rotateWebhookSecret",
    "listWebhookDeliveries",
    "deleteWebhookEndpoint",
)


def _links(parameter: str, *operations: str, place: str = _ID) -> dict[str, Json]:
    return {name: {"parameters": {parameter: place}} for name in operations}


UPLOAD: Json = {
    "id": "upload_0f3d1c5be2a94f67a1f0c7d2b8e45a90",
    "object": "upload",
    "bytes": 2_147_483_648,
    "created_at": 1_795_165_000,
    "expires_at": 1_795_168_600,
    "filename": "rows.jsonl",
    "purpose": "user_data",
    "status": "pending",
    "file": None,
}
FILE_ID = "file-4Ai0bEr9QKmnTz5kWvYc1x"
_OUTPUT_ID = "file-7Qw2eRt5yUiOp9aSdFgH3j"
_BATCH_ID = "batch_0f3a7c1e5b9d42688ac4e6021d7f93b5"
_CREATED_AT = 1_795_165_000

#: An example of each object, by the name of its schema.
OBJECTS: Mapping[str, Json] = {
    "File": File(
        id=FILE_ID,
        bytes=24_310,
        created_at=_CREATED_AT,
        expires_at=_CREATED_AT + 2_592_000,
        filename="tickets.jsonl",
        purpose="batch",
    ).model_dump(),
    "Batch": Batch(
        id=_BATCH_ID,
        endpoint="/v1/chat/completions",
        model="support-chat",
        input_file_id=FILE_ID,
        completion_window="24h",
        status=Status.COMPLETED,
        output_file_id=_OUTPUT_ID,
        created_at=_CREATED_AT,
        in_progress_at=_CREATED_AT + 1,
        finalizing_at=_CREATED_AT + 80,
        completed_at=_CREATED_AT + 81,
        expires_at=_CREATED_AT + 86_400,
        request_counts=RequestCounts(total=120, completed=120),
        metadata={"run": "nightly"},
    ).model_dump(mode="json"),
    "Model": Model(
        id="support-chat",
        created=_CREATED_AT,
        endpoints=["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"],
    ).model_dump(),
    "Upload": UPLOAD,
    "UploadPart": UploadPart(
        id="part_5b0c7ad9f4be4b6d8d6f8f6c1d2e3a47",
        created_at=_CREATED_AT + 12,
        upload_id=UPLOAD["id"],
    ).model_dump(),
}
#: Examples of answers that differ from their object's, by operation.
ANSWERS: Mapping[str, Json] = {
    "completeUpload": {
        **UPLOAD,
        "status": "completed",
        "file": File(
            id="file-2YqK5nV0cT8rWm3Lx7BdAe",
            bytes=UPLOAD["bytes"],
            created_at=_CREATED_AT + 300,
            expires_at=None,
            filename=UPLOAD["filename"],
            purpose=UPLOAD["purpose"],
        ).model_dump(),
    },
    "cancelUpload": {**UPLOAD, "status": "cancelled"},
}
#: An example of each parameter, by its name.
PARAMETERS: Mapping[str, str | int] = {
    "file_id": FILE_ID,
    "batch_id": _BATCH_ID,
    "model": "support-chat",
    "after": FILE_ID,
    "limit": 20,
    "purpose": "batch",
    "page": "20780",
    "range": "bytes=1000-",
    "start_time": 1_795_132_800,
    "end_time": 1_795_219_200,
    "idempotency-key": "nightly-2026-11-20",
}
#: An example of each body, by operation.
BODIES: Mapping[str, Json] = {
    "createBatch": {
        "input_file_id": FILE_ID,
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
        "metadata": {"run": "nightly"},
    },
    "createFile": {
        "file": '{"custom_id":"t-1","method":"POST","url":"/v1/chat/completions","body":{"model":'
        '"support-chat","messages":[{"role":"user","content":"Where is my parcel?"}]}}\n',
        "purpose": "batch",
        "expires_after": {"anchor": "created_at", "seconds": 86_400},
    },
    "createUpload": {
        "bytes": UPLOAD["bytes"],
        "filename": UPLOAD["filename"],
        "mime_type": "application/jsonl",
        "purpose": UPLOAD["purpose"],
    },
    "completeUpload": {
        "part_ids": ["part_5b0c7ad9f4be4b6d8d6f8f6c1d2e3a47"],
        "md5": "9b74c9897bac770ffc029102a200c5de",
    },
    "updateBatch": {"priority": 9},
    "createWebhookEndpoint": {
        "name": "Ends of batches",
        "url": "https://example.com/hook",
        "event_types": ["batch.completed"],
    },
}
#: Where the id of an object goes: the operations that take it, and the parameter.
#: A link is there only if the call that it leads to is always accepted.
LINKS: Mapping[str, Mapping[str, Json]] = {
    "createFile": _links("file_id", "retrieveFile", "downloadFile"),
    "createBatch": _links("batch_id", *_OF_A_BATCH),
    "retryBatch": _links("batch_id", *_OF_A_BATCH),
    "listModels": _links("model", "retrieveModel", place=_FIRST),
    "createWebhookEndpoint": _links("webhook_endpoint_id", *_OF_A_WEBHOOK_ENDPOINT),
    "createUpload": _links("upload_id", "cancelUpload"),
}
#: Operations that may find their object there already, and different.
CONFLICTS = {"createBatch", "createPipeline"}
DOWNLOADS = {"downloadFile"}
