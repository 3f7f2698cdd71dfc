"""The words of the OpenAPI document: examples, errors, headers and links, as tables."""

from collections.abc import Mapping
from typing import Any

from shared.lifecycle import Status
from shared.openai.endpoints import ENDPOINTS
from shared.openai.shapes import (
    Batch,
    ErrorBody,
    File,
    Model,
    RequestCounts,
)

Json = dict[str, Any]

_INVALID = "invalid_request_error"


def _links(parameter: str, *operations: str) -> dict[str, Json]:
    return {name: {"parameters": {parameter: "$response.body#/id"}} for name in operations}


_FILE_ID = "file-4Ai0bEr9QKmnTz5kWvYc1x"
_OUTPUT_ID = "file-7Qw2eRt5yUiOp9aSdFgH3j"
_BATCH_ID = "batch_0f3a7c1e5b9d42688ac4e6021d7f93b5"
_CREATED_AT = 1_795_165_000

#: A good value of each object, by the name of its schema.
OBJECTS: Mapping[str, Json] = {
    "File": File(
        id=_FILE_ID,
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
        input_file_id=_FILE_ID,
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
    "Model": Model(id="support-chat", created=_CREATED_AT).model_dump(),
}
#: A good value of each parameter that several operations have, by its name.
PARAMETERS: Mapping[str, str | int] = {
    "file_id": _FILE_ID,
    "batch_id": _BATCH_ID,
    "model": "support-chat",
    "after": _FILE_ID,
    "limit": 20,
    "purpose": "batch",
    "idempotency-key": "nightly-2026-11-20",
}
#: A good body of an operation whose decorator gives none.
BODIES: Mapping[str, Json] = {
    "createBatch": {
        "input_file_id": _FILE_ID,
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
}
#: What the fields of a body may be, where its own schema cannot say so.
FIELDS: Mapping[str, Mapping[str, Json]] = {
    "createBatch": {
        "endpoint": {"enum": list(ENDPOINTS)},
        "completion_window": {"description": "`24h`, or another one that this gateway is set to."},
    },
}
#: Where a new object's id goes: the operations that take it, as which parameter or body.
LINKS: Mapping[str, Mapping[str, Json]] = {
    "createFile": {
        **_links("file_id", "retrieveFile", "downloadFile", "deleteFile"),
        "createBatch": {
            "requestBody": {
                "input_file_id": "{$response.body#/id}",
                "endpoint": "/v1/chat/completions",
                "completion_window": "24h",
            }
        },
    },
    "createBatch": _links("batch_id", "retrieveBatch", "cancelBatch"),
    "createWebhookEndpoint": _links(
        "webhook_endpoint_id",
        "retrieveWebhookEndpoint",
        "updateWebhookEndpoint",
        "rotateWebhookSecret",
        "deleteWebhookEndpoint",
    ),
    "createUpload": _links("upload_id", "createUploadPart", "completeUpload", "cancelUpload"),
}
#: Operations that make something, and may find that it is there and different.
CONFLICTS = {"createBatch"}
DOWNLOADS = {"downloadFile"}

#: What each error is about, and an example of it.
ERRORS: Mapping[str, tuple[str, ErrorBody]] = {
    "400": (
        "The call breaks the contract; the message says which field and why.",
        ErrorBody(
            message="Invalid 'limit': integer above maximum value. Expected a value <= 100, but "
            "got 101 instead.",
            type=_INVALID,
            param="limit",
            code="integer_above_max_value",
        ),
    ),
    "401": (
        "There is no key, or none that is known.",
        ErrorBody(
            message="Incorrect API key provided: sk-***4f2a.",
            type=_INVALID,
            code="invalid_api_key",
        ),
    ),
    "404": (
        "The object does not exist, or is another tenant's.",
        ErrorBody(message=f"No such File object: {_FILE_ID}", type=_INVALID, param="id"),
    ),
    "409": (
        "The object's state rules the call out, now and later.",
        ErrorBody(message="Cannot cancel a batch with status 'completed'.", type=_INVALID),
    ),
    "413": (
        "More bytes than the limit allows.",
        ErrorBody(message="The body is too large: at most 1048576 bytes are taken.", type=_INVALID),
    ),
    "429": (
        "Too many calls, or too much work that waits.",
        ErrorBody(
            message="Rate limit reached. Please try again in 2s.",
            type="requests",
            code="rate_limit_exceeded",
        ),
    ),
    "500": (
        "A bug; the log has it under the request id.",
        ErrorBody(
            message="The server had an error while processing your request. Its request id helps "
            "to find why.",
            type="server_error",
        ),
    ),
    "503": (
        "A service behind the gateway is away for a moment.",
        ErrorBody(
            message="The server cannot reach a part of itself at the moment. Please try again in "
            "a few seconds.",
            type="server_error",
        ),
    ),
}
_COUNT = {"type": "integer", "minimum": 0}
#: Each header that is documented, by its name.
HEADERS: Mapping[str, Json] = {
    "x-request-id": {
        "description": "The call's name in our log.",
        "required": True,
        "schema": {"type": "string", "pattern": "^req_[0-9a-f]{32}$"},
    },
    "openai-processing-ms": {
        "description": "How long the call took.",
        "required": True,
        "schema": _COUNT,
    },
    "openai-version": {"required": True, "schema": {"type": "string"}},
    "x-content-type-options": {"required": True, "schema": {"const": "nosniff"}},
    "x-ratelimit-limit-requests": {"schema": _COUNT},
    "x-ratelimit-remaining-requests": {"schema": _COUNT},
    "x-ratelimit-reset-requests": {
        "description": "A time such as `1s` or `6m0s`.",
        "schema": {"type": "string"},
    },
    "retry-after": {"description": "Seconds to wait before the next try.", "schema": _COUNT},
    "x-should-retry": {
        "description": "Whether the SDKs should try again, if that is not plain.",
        "schema": {"enum": ["true", "false"]},
    },
    "www-authenticate": {"required": True, "schema": {"type": "string"}},
    "content-disposition": {
        "description": "`attachment`, with the file's name.",
        "required": True,
        "schema": {"type": "string"},
    },
}
#: The headers of every answer, of every answer to a caller, and of some errors.
EVERYWHERE = ("x-request-id", "openai-processing-ms", "openai-version", "x-content-type-options")
OF_CALLERS = tuple(name for name in HEADERS if name.startswith("x-ratelimit-"))
OF_STATUS: Mapping[str, tuple[str, ...]] = {
    "401": ("www-authenticate",),
    "409": ("x-should-retry",),
    "429": ("retry-after", "x-should-retry"),
    "503": ("retry-after",),
}
