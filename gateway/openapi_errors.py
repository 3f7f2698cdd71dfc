"""Tables of the OpenAPI document: errors of all operations and of single ones. Pure."""

from collections.abc import Mapping

from gateway.openapi_words import FILE_ID, UPLOAD
from shared.openai.shapes import ErrorBody

BUSY = "The server cannot reach one of its services right now. Please try again in a few seconds."
BROKEN = (
    "The server had an error while processing your request. Please try again, or contact your "
    "operator with the request id of this answer."
)
_INVALID = "invalid_request_error"


def damaged(reason: str) -> str:
    """What a caller is told of a damaged object."""
    return (
        f"What this call reads is damaged in the server's storage: {reason}. Ask your operator to "
        "run `batchyard fsck`, which names it, and to make results again if that is possible."
    )


def _invalid(message: str, param: str) -> ErrorBody:
    return ErrorBody(message=message, type=_INVALID, param=param, code="invalid_value")


_NO_UPLOAD = ErrorBody(message=f"No such Upload object: {UPLOAD['id']}", type=_INVALID, param="id")
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
        "There is no key, or none that is known and still valid.",
        ErrorBody(
            message="Incorrect API key provided: sk-***4f2a.",
            type=_INVALID,
            code="invalid_api_key",
        ),
    ),
    "403": (
        "The key may not be used for this call; the message names the scope that it lacks.",
        ErrorBody(
            message="You have insufficient permissions for this operation. Missing scopes: "
            "submit. The key key_5f0c has: read. Use another key, or ask your operator to change "
            "this one.",
            type=_INVALID,
            code="missing_scope",
        ),
    ),
    "404": (
        "The object does not exist, or is another tenant's.",
        ErrorBody(message=f"No such File object: {FILE_ID}", type=_INVALID, param="id"),
    ),
    "409": (
        "The object's state rules the call out, now and later.",
        ErrorBody(message="Cannot cancel a batch with status 'completed'.", type=_INVALID),
    ),
    "413": (
        "More bytes than the limit allows.",
        ErrorBody(
            message="The request body is too large. Send at most 1048576 bytes.", type=_INVALID
        ),
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
            message=BROKEN,
            type="server_error",
        ),
    ),
    "503": (
        "A service behind the gateway is away for a moment.",
        ErrorBody(
            message=BUSY,
            type="server_error",
        ),
    ),
}
#: Examples of errors that an operation alone has, by operation and status.
REFUSALS: Mapping[str, Mapping[str, ErrorBody]] = {
    "createUpload": {
        "400": ErrorBody(
            message="Invalid 'bytes': integer above maximum value. Expected a value <= 209715200 "
            "for purpose 'batch', but got 2147483648 instead.",
            type=_INVALID,
            param="bytes",
            code="integer_above_max_value",
        )
    },
    "createUploadPart": {
        "400": _invalid(
            f"Cannot add a part to upload '{UPLOAD['id']}' with status 'completed'.", "upload_id"
        ),
        "404": _NO_UPLOAD,
    },
    "completeUpload": {
        "400": _invalid(
            "Invalid 'part_ids': the parts have 2147483000 bytes together, but upload "
            f"'{UPLOAD['id']}' was created with 'bytes' 2147483648.",
            "part_ids",
        ),
        "404": _NO_UPLOAD,
    },
    "cancelUpload": {
        "400": _invalid(
            f"Cannot cancel upload '{UPLOAD['id']}' with status 'completed'.", "upload_id"
        ),
        "404": _NO_UPLOAD,
    },
}
