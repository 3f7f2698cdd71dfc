"""Open batches: requests are added while the batch runs, until it is closed."""

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, ConfigDict, Field

from gateway.auth import OwnBatch
from gateway.bodies import read_bytes
from gateway.dependencies import Use
from gateway.limit_errors import limit_reached
from gateway.route_docs import addition
from shared.openai.shapes import Batch
from shared.submission.additions import (
    MAX_ADDITION_BYTES,
    RoomError,
    close,
    require_no_pipeline,
)

router = APIRouter()

_LINES = {
    "type": "string",
    "description": "A request in each line, as in an input file: at most 10,000, and 4 MiB.",
}
_ARRAY = {
    "type": "array",
    "items": {"type": "object"},
    "minItems": 1,
    "description": "The same requests as one array.",
}
_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            "application/x-ndjson": {"schema": _LINES},
            "application/json": {"schema": _ARRAY},
        },
    }
}


class AddedRequests(BaseModel):
    """What a call has added to an open batch."""

    model_config = ConfigDict(frozen=True)

    object: Literal["batch.addition"] = "batch.addition"
    batch_id: str
    added: int = Field(description="Requests that are new.")
    repeated: int = Field(
        description="Requests that the batch had already, with the same custom_id and the same "
        "bytes. They are not run again."
    )
    total: int = Field(description="Requests that the batch has now.")


@router.post(
    "/batches/{batch_id}/requests",  # noqa: FAST003  # the dependency that gives the batch reads it
    openapi_extra=_BODY
    | addition(
        "An addition to OpenAI's API. SDK: client.post(path, cast_to=object, body=[{…}, {…}])."
    ),
)
async def add_requests(
    request: Request,
    batch: OwnBatch,
    services: Use,
    *,
    dry_run: Annotated[bool, Query(description="Only say what would be added.")] = False,
) -> AddedRequests:
    """Add requests to an open batch, all of them or none. They are kept once this is answered.

    Repeating the call adds nothing: a request with a custom_id that the batch has is the same one,
    or, if its line differs, a conflict (409) that names the line. A line that is no request is a
    400 that names it. At most 10,000 requests and 4 MiB a call; together, what an input file may
    have. Fewer and larger calls are cheaper: each is at least one slice.
    """
    require_no_pipeline(batch)
    body = await read_bytes(request, MAX_ADDITION_BYTES)
    try:
        done = await services.additions.add(batch, body, dry_run=dry_run)
    except RoomError as error:
        raise limit_reached(batch.tenant, error.reached) from error
    return AddedRequests(
        batch_id=batch.id,
        added=done.added,
        repeated=done.repeated,
        total=done.batch.number("total"),
    )


@router.post(
    "/batches/{batch_id}/close",  # noqa: FAST003  # as above
    openapi_extra=addition("An addition to OpenAI's API. SDK: client.post(path, cast_to=Batch)."),
)
async def close_batch(batch: OwnBatch, services: Use) -> Batch:
    """Let an open batch take no more requests. It ends as soon as those that it has are done.

    Repeating the call changes nothing. 409 for a batch that was not created open, or that has been
    cancelled.
    """
    require_no_pipeline(batch)
    return (await close(services.state, services.storage, batch.id)).to_openai()
