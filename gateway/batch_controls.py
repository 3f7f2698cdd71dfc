"""What a client may do to a batch under way, besides cancelling it: pause, resume, change it."""

import json
from typing import Annotated

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field

from gateway.auth import OwnBatch, Tenant
from gateway.batches import METADATA_SCHEMA, own_batch
from gateway.dependencies import Use
from gateway.fields import metadata_limits, read_body, require_small
from shared.errors import ConflictError, InvalidInputError
from shared.ledger.changes import keep_changes
from shared.lifecycle import Status
from shared.openai.shapes import Batch

router = APIRouter()

_OURS = "An addition to OpenAI's API. SDK: client.post(path, cast_to=Batch)."


class UpdateBatch(BaseModel):
    """The body of `update_batch`; a field that is left out stays as it is."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    priority: int = Field(default=5, ge=0, le=9)
    metadata: Annotated[dict[str, str], Field(json_schema_extra=METADATA_SCHEMA)] | None = None


@router.post("/batches/{batch_id}/pause", openapi_extra={"x-batchyard": _OURS})  # noqa: FAST003  # what gives the batch takes it
async def pause_batch(batch: OwnBatch, services: Use) -> Batch:
    """Start no more of the batch's requests; those that run come to their end.

    Its completion window goes on. It may be cancelled, and expires, as any other. To repeat it
    changes nothing. The batch has `paused: true` until it is resumed.
    """
    _require_open(await services.state.controls.pause(batch.id), "pause")
    return (await keep_changes(services.state, services.storage, batch.id)).to_openai()


@router.post("/batches/{batch_id}/resume", openapi_extra={"x-batchyard": _OURS})  # noqa: FAST003  # as above
async def resume_batch(batch: OwnBatch, services: Use) -> Batch:
    """Let a paused batch go on; one that is not paused stays as it is."""
    _require_open(await services.state.controls.resume(batch.id), "resume")
    return (await keep_changes(services.state, services.storage, batch.id)).to_openai()


@router.post(
    "/batches/{batch_id}",
    openapi_extra={
        "x-batchyard": "An addition to OpenAI's API. SDK: client.post(path, cast_to=Batch, "
        "body={'priority': 9}).",
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": UpdateBatch.model_json_schema()}},
        },
    },
)
async def update_batch(request: Request, batch_id: str, tenant: Tenant, services: Use) -> Batch:
    """Change the priority (0 to 9, the higher the sooner) of a batch that runs, or its metadata.

    What has not begun to run is put in the new order at once. `metadata` replaces all pairs, null
    takes them away; that is possible after the batch's end, too.
    """
    wish = await read_body(request, UpdateBatch)
    told = wish.model_fields_set
    if not told:
        raise InvalidInputError(
            "Nothing to change: give 'priority', 'metadata' or both.",
            param="priority",
            code="missing_required_parameter",
        )
    require_small(wish.metadata or {}, metadata_limits(services.settings))
    await own_batch(services.state, tenant, batch_id)
    status = await services.state.controls.amend(
        batch_id,
        priority=wish.priority if "priority" in told else None,
        metadata=json.dumps(wish.metadata) if "metadata" in told else None,
    )
    _require_open(status, "change the priority of")
    return (await keep_changes(services.state, services.storage, batch_id)).to_openai()


def _require_open(status: Status | None, verb: str) -> None:
    if status is not None:
        raise ConflictError(f"Cannot {verb} a batch with status '{status}'.")
