"""OpenAI's Batches API: makes batches, shows them, and asks for their end. Runs nothing."""

import hashlib
import json
import time
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request
from pydantic import BaseModel, ConfigDict, Field

from gateway.auth import Tenant
from gateway.dependencies import Services, Use
from gateway.dry_run import DryRun
from gateway.fields import ExpiresAfter, read_body, require_one_of
from gateway.files import live_file
from shared import crash, ids
from shared.errors import ConflictError, InvalidInputError, InvalidTransitionError, NotFoundError
from shared.lifecycle import Event, Status
from shared.messages import window_seconds
from shared.openai import ENDPOINTS, Batch, CursorPage
from shared.state import BatchRecord, FileRecord, State
from shared.submission import Manifest, accept

router = APIRouter()

_PAGE = 20
_DRY_RUN = (
    "Beyond OpenAI: `true` checks the input as a new batch would be checked and answers with a "
    "`batch.dry_run`: rows, every bad line, tokens by the model's own tokenizer, requests longer "
    "than its context, model, lane, and when the batch would be done. Nothing is created. "
    'In OpenAI\'s SDK: `extra_body={"dry_run": True}`.'
)
_MAX_KEY_CHARACTERS = 255


class CreateBatch(BaseModel):
    """The body of `create_batch`; `priority`, `idempotency_key` and `dry_run` are ours."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    input_file_id: str
    endpoint: str
    completion_window: str
    metadata: Annotated[
        dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]] | None,
        Field(max_length=16),
    ] = None
    output_expires_after: ExpiresAfter | None = None
    priority: int = Field(default=5, ge=0, le=9)
    idempotency_key: str | None = Field(default=None, max_length=_MAX_KEY_CHARACTERS)
    dry_run: bool = False


@router.post(
    "/batches",
    description="Creates a batch. With `dry_run` nothing is created: the answer says at once what "
    "would become of the batch.",
    openapi_extra={
        "x-batchyard": {"dry_run": _DRY_RUN},
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": CreateBatch.model_json_schema()}},
        },
    },
)
async def create_batch(
    request: Request,
    tenant: Tenant,
    services: Use,
    idempotency_key: Annotated[str | None, Header(max_length=_MAX_KEY_CHARACTERS)] = None,
) -> Batch | DryRun:
    wish = await read_body(request, CreateBatch)
    require_one_of(wish.endpoint, ENDPOINTS, "endpoint")
    windows = services.settings.completion_windows
    require_one_of(wish.completion_window, windows, "completion_window")
    file = await _input_file(services, tenant, wish.input_file_id)
    if wish.dry_run:
        return await services.dry_runs.run(
            file, endpoint=wish.endpoint, completion_window=wish.completion_window
        )
    # Without a key every call is a batch of its own, named after the call.
    message_id = f"http:{idempotency_key or wish.idempotency_key or request.state.request_id}"
    manifest = _manifest(wish, file, message_id, services)
    accepted = await accept(services.state, services.storage, manifest)
    crash.point("gateway.accepted")
    return (await services.state.batches.get(accepted.batch_id)).to_openai()


@router.get("/batches")
async def list_batches(
    tenant: Tenant,
    services: Use,
    *,
    after: str | None = None,
    limit: Annotated[int, Query(ge=0, le=100)] = _PAGE,
) -> CursorPage[Batch]:
    # The SDKs' own test suites ask for 0 and expect an answer.
    found, has_more = await services.state.batches.page(tenant, after=after, limit=limit or _PAGE)
    return CursorPage.of([batch.to_openai() for batch in found], has_more=has_more)


@router.get("/batches/{batch_id}")
async def retrieve_batch(batch_id: str, tenant: Tenant, services: Use) -> Batch:
    return (await own_batch(services.state, tenant, batch_id)).to_openai()


@router.post("/batches/{batch_id}/cancel")
async def cancel_batch(batch_id: str, tenant: Tenant, services: Use) -> Batch:
    await own_batch(services.state, tenant, batch_id)
    try:
        await services.state.apply(batch_id, Event.CANCEL_REQUESTED)
    except InvalidTransitionError as error:
        # To ask again for what has happened is no error.
        if error.status != Status.CANCELLED:
            raise ConflictError(f"Cannot cancel a batch with status '{error.status}'.") from error
    return (await own_batch(services.state, tenant, batch_id)).to_openai()


def fingerprint(wish: CreateBatch, output_seconds: int) -> str:
    """The same for the same wish, however its JSON was written."""
    told = [
        wish.endpoint,
        wish.input_file_id,
        wish.completion_window,
        wish.metadata,
        wish.priority,
        output_seconds,
    ]
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


async def _input_file(services: Services, tenant: str, file_id: str) -> FileRecord:
    try:
        file = await live_file(services.state, tenant, file_id)
    except NotFoundError as error:
        raise InvalidInputError(
            f"Cannot find file {file_id}, or project {tenant} does not have access to it.",
            param="file_id",
            code="invalid_request",
        ) from error
    if file.purpose != "batch":
        raise InvalidInputError(
            f"Invalid purpose of file {file_id}: expected 'batch', but got '{file.purpose}' "
            "instead.",
            param="input_file_id",
            code="invalid_value",
        )
    most = services.settings.max_upload_bytes
    if file.bytes > most:
        raise InvalidInputError(
            f"File {file_id} is too large: a batch's 'input_file_id' may have at most {most} "
            f"bytes, but it has {file.bytes}.",
            param="input_file_id",
            code="invalid_value",
        )
    return file


def _manifest(wish: CreateBatch, file: FileRecord, message_id: str, services: Services) -> Manifest:
    now = int(time.time())
    kept = wish.output_expires_after
    output_seconds = kept.seconds if kept else services.settings.output_seconds
    return Manifest(
        id=ids.batch_id(file.tenant, message_id),
        tenant=file.tenant,
        message_id=message_id,
        fingerprint=fingerprint(wish, output_seconds),
        door="http",
        endpoint=wish.endpoint,
        input_file_id=file.id,
        bucket=file.bucket,
        key=file.key,
        etag=file.etag,
        size=file.bytes,
        completion_window=wish.completion_window,
        created_at=now,
        expires_at=now + window_seconds(wish.completion_window),
        priority=wish.priority,
        metadata="" if wish.metadata is None else json.dumps(wish.metadata),
        output_seconds=output_seconds,
    )


async def own_batch(state: State, tenant: str, batch_id: str) -> BatchRecord:
    """The tenant's batch. Raises NotFoundError, for another tenant's as for none."""
    batch = await state.batches.get(batch_id)
    if batch.tenant != tenant:
        raise NotFoundError(f"No batch found with id '{batch_id}'.", param="id")
    return batch
