"""Controls of a running batch besides cancelling: pause, resume and change."""

import asyncio
import json

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict

from gateway.auth import OwnBatch, Tenant
from gateway.batches import own_batch
from gateway.bodies import read_body
from gateway.dependencies import Use
from gateway.fields import require_small
from gateway.pausing import rows_in_engine
from gateway.route_docs import addition, json_body
from shared.errors import ConflictError, InvalidInputError
from shared.integers import Priority
from shared.ledger.changes import save_changes
from shared.lifecycle import Status
from shared.openai.shapes import Batch

router = APIRouter()

_ADDITION = addition("An addition to OpenAI's API. SDK: client.post(path, cast_to=Batch).")


class UpdateBatch(BaseModel):
    """The body of `update_batch`. Fields that are left out stay as they are."""

    model_config = ConfigDict(
        frozen=True, strict=True, extra="forbid", json_schema_extra={"minProperties": 1}
    )

    priority: Priority = 5
    metadata: dict[str, str] | None = None


class PausedBatch(Batch):
    """The batch object, and what a pause lets end."""

    requests_in_engine: int


@router.post("/batches/{batch_id}/pause", openapi_extra=_ADDITION)  # noqa: FAST003  # the dependency that gives the batch reads it
async def pause_batch(batch: OwnBatch, services: Use) -> PausedBatch:
    """Start no more of the batch's requests. Those that the engine has will still end.

    `requests_in_engine` in the answer says how many those are. Its completion window goes on, so it
    may expire, and it can be cancelled. The batch has `paused: true` until it is resumed. Repeating
    the call changes nothing.
    """
    _require_open(await services.state.controls.pause(batch.id), "pause")
    left, record = await asyncio.gather(
        rows_in_engine(services.state, batch),
        save_changes(services.state, services.storage, batch.id),
    )
    return PausedBatch(**dict(record.to_openai()), requests_in_engine=left)


@router.post("/batches/{batch_id}/resume", openapi_extra=_ADDITION)  # noqa: FAST003  # as above
async def resume_batch(batch: OwnBatch, services: Use) -> Batch:
    """Let a paused batch continue. A batch that is not paused stays as it is."""
    _require_open(await services.state.controls.resume(batch.id), "resume")
    return (await save_changes(services.state, services.storage, batch.id)).to_openai()


@router.post(
    "/batches/{batch_id}",
    openapi_extra=json_body(UpdateBatch)
    | addition(
        "An addition to OpenAI's API. SDK: client.post(path, cast_to=Batch, body={'priority': 9})."
    ),
)
async def update_batch(request: Request, batch_id: str, tenant: Tenant, services: Use) -> Batch:
    """Change a running batch's priority (0 to 9, higher runs sooner), or any batch's metadata.

    Requests that have not begun to run are reordered at once. `metadata` replaces all pairs; null
    removes them. It may be changed after the batch's end, too.
    """
    params = await read_body(request, UpdateBatch)
    given = params.model_fields_set
    if not given:
        raise InvalidInputError(
            "Nothing to change: give 'priority', 'metadata' or both.",
            param="priority",
            code="missing_required_parameter",
        )
    require_small(params.metadata or {}, services.settings.metadata_limits)
    await own_batch(services.state, tenant, batch_id)
    status = await services.state.controls.amend(
        batch_id,
        priority=params.priority if "priority" in given else None,
        metadata=json.dumps(params.metadata) if "metadata" in given else None,
    )
    _require_open(status, "change the priority of")
    return (await save_changes(services.state, services.storage, batch_id)).to_openai()


def _require_open(status: Status | None, verb: str) -> None:
    if status is not None:
        raise ConflictError(f"Cannot {verb} a batch with status '{status}'.")
