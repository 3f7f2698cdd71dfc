"""OpenAI's Batches API: makes batches, shows them, and asks for their end. Runs nothing."""

import hashlib
import json
import time
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request
from pydantic import BaseModel, ConfigDict, Field, JsonValue

from gateway.auth import OwnBatch, Tenant, require_own
from gateway.dependencies import Services, Use
from gateway.dry_run import DryRun
from gateway.fields import (
    ExpiresAfter,
    metadata_limits,
    read_body,
    require_one_of,
    require_small,
)
from gateway.files import live_file
from gateway.limits import reserve_batch
from gateway.settings import GatewaySettings
from shared import crash, ids
from shared.bus.messages import Deliver, window_seconds
from shared.errors import ConflictError, InvalidInputError, InvalidTransitionError, NotFoundError
from shared.ledger.commits import cancel
from shared.ledger.manifests import Manifest
from shared.lifecycle import Status
from shared.openai.endpoints import ENDPOINTS
from shared.openai.shapes import Batch, CursorPage
from shared.state import BatchRecord, FileRecord, State
from shared.submission.accept import HTTP_KEY, accept, conflict

router = APIRouter()

_PAGE = 20
#: The end of the year 9999.
_LAST_SECOND = 253_402_300_799
_DRY_RUN = (
    "Beyond OpenAI: `true` checks the input as a new batch would be checked and answers with a "
    "`batch.dry_run`: rows, every bad line, tokens by the model's own tokenizer, requests longer "
    "than its context, model, lane, and when the batch would be done. Nothing is created. "
    'In OpenAI\'s SDK: `extra_body={"dry_run": True}`.'
)
_IDEMPOTENCY = (
    "Beyond OpenAI, also as the header Idempotency-Key: the same key with the same parameters is "
    "the same batch, with other parameters a conflict."
)
_DELIVER = (
    'Beyond OpenAI: `{"results": true}` puts small results into the batch\'s last event on the '
    'bus. In OpenAI\'s SDK: `extra_body={"deliver": {"results": True}}`.'
)
_MAX_KEY_CHARACTERS = 255
_MAX_ID_CHARACTERS = 256
_ENDPOINT = (
    "Beyond OpenAI, where the operator allows it (BATCHYARD_MIXED_BATCHES): each line's `url` and "
    "`body.model` say where it runs, and `endpoint` is only echoed. `model` is null then where "
    "lines name several. Otherwise a line that differs fails the batch, as with OpenAI."
)
#: OpenAI's numbers; the settings may say others.
METADATA_SCHEMA: dict[str, JsonValue] = {
    "maxProperties": 16,
    "propertyNames": {"maxLength": 64},
    "additionalProperties": {"type": "string", "maxLength": 512},
}


class CreateBatch(BaseModel):
    """The body of `create_batch`; what OpenAI's has not is told in `x-batchyard`."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    input_file_id: str = Field(max_length=_MAX_ID_CHARACTERS)
    endpoint: str
    completion_window: str
    metadata: Annotated[dict[str, str], Field(json_schema_extra=METADATA_SCHEMA)] | None = None
    output_expires_after: ExpiresAfter | None = None
    priority: int = Field(default=5, ge=0, le=9)
    idempotency_key: str | None = Field(default=None, max_length=_MAX_KEY_CHARACTERS)
    dry_run: bool = False
    deliver: Deliver | None = None


@router.post(
    "/batches",
    description="Creates a batch. With `dry_run` nothing is created: the answer says at once what "
    "would become of the batch.",
    openapi_extra={
        "x-batchyard": {
            "deliver": _DELIVER,
            "dry_run": _DRY_RUN,
            "endpoint": _ENDPOINT,
            "idempotency_key": _IDEMPOTENCY,
            "priority": "Beyond OpenAI: 0 to 9, higher ones go first.",
        },
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
    _check(wish, idempotency_key, services.settings)
    if wish.dry_run:
        return await services.dry_runs.run(
            await _input_file(services, tenant, wish.input_file_id, "dry-run"),
            endpoint=wish.endpoint,
            completion_window=wish.completion_window,
        )
    # Without a key every call is a batch of its own, named after the call.
    key = idempotency_key or wish.idempotency_key or request.state.request_id
    message_id = HTTP_KEY + key
    batch_id = ids.batch_id(tenant, message_id)
    if known := await reserve_batch(request, services, tenant, batch_id, wish.endpoint):
        # Also when its input is gone by now.
        if known.fingerprint != fingerprint(wish, _output_seconds(wish, services.settings)):
            raise conflict(message_id)
        return (await services.state.batches.get(batch_id)).to_openai()
    file = await _input_file(services, tenant, wish.input_file_id, batch_id)
    manifest = _manifest(wish, file, message_id, services.settings)
    accepted = await accept(services.state, services.storage, manifest)
    crash.point("gateway.accepted")
    return (await services.state.batches.get(accepted.batch_id)).to_openai()


@router.get(
    "/batches",
    openapi_extra={
        "x-batchyard": {
            "updated_after": "Beyond OpenAI: only batches whose state changed after this time "
            "(Unix seconds), the last changed first; `after` works as ever. In OpenAI's SDK: "
            '`extra_query={"updated_after": 1795165000}`.'
        }
    },
)
async def list_batches(
    tenant: Tenant,
    services: Use,
    *,
    after: str | None = None,
    limit: Annotated[int, Query(ge=0, le=100)] = _PAGE,
    updated_after: Annotated[float | None, Query(ge=0, le=_LAST_SECOND)] = None,
) -> CursorPage[Batch]:
    found, has_more = await services.state.batches.page(
        tenant,
        after=after,
        # The SDKs' own test suites ask for 0 and expect an answer.
        limit=limit or _PAGE,
        changed_after=None if updated_after is None else int(updated_after * 1_000_000),
    )
    return CursorPage.of([batch.to_openai() for batch in found], has_more=has_more)


@router.get("/batches/{batch_id}")  # noqa: FAST003  # what gives the batch takes it
async def retrieve_batch(batch: OwnBatch) -> Batch:
    return batch.to_openai()


@router.post("/batches/{batch_id}/cancel")  # noqa: FAST003  # as above
async def cancel_batch(batch: OwnBatch, services: Use) -> Batch:
    try:
        await cancel(services.state, services.storage, batch.id)
        crash.point("gateway.cancelled")
    except InvalidTransitionError as error:
        # To ask again for what has happened is no error.
        if error.status != Status.CANCELLED:
            raise ConflictError(f"Cannot cancel a batch with status '{error.status}'.") from error
    return (await services.state.batches.get(batch.id)).to_openai()


def fingerprint(wish: CreateBatch, output_seconds: int) -> str:
    """The same for the same wish, however its JSON was written."""
    told = [
        wish.endpoint,
        wish.input_file_id,
        wish.completion_window,
        wish.metadata,
        wish.priority,
        output_seconds,
        # Only where it is asked for: fingerprints stay what they were.
        *(["results"] if _delivers(wish) else []),
    ]
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


def _check(wish: CreateBatch, header_key: str | None, settings: GatewaySettings) -> None:
    require_one_of(wish.endpoint, ENDPOINTS, "endpoint")
    require_one_of(wish.completion_window, settings.completion_windows, "completion_window")
    require_small(wish.metadata or {}, metadata_limits(settings))
    if header_key and wish.idempotency_key and header_key != wish.idempotency_key:
        raise InvalidInputError(
            f"Invalid 'idempotency_key': '{wish.idempotency_key}' differs from the header "
            f"Idempotency-Key '{header_key}'. Send one of them, or the same twice.",
            param="idempotency_key",
            code="invalid_value",
        )


async def _input_file(services: Services, tenant: str, file_id: str, batch_id: str) -> FileRecord:
    settings = services.settings
    try:
        file = await live_file(services.state, tenant, file_id)
    except NotFoundError as error:
        if settings.missing_file == "async":
            return _missing_file(services, tenant, file_id, batch_id)
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
    if file.bytes > settings.max_input_bytes:
        raise InvalidInputError(
            f"The batch input file {file_id} is larger than the {settings.max_input_bytes} "
            f"maximum: it has {file.bytes} bytes.",
            param="input_file_id",
        )
    return file


def _missing_file(services: Services, tenant: str, file_id: str, batch_id: str) -> FileRecord:
    """A file whose object is nowhere, so that the batch fails for it."""
    return FileRecord.missing(
        file_id,
        tenant,
        bucket=services.storage.bucket,
        key=f"batches/{batch_id}/no-input",
    )


def _output_seconds(wish: CreateBatch, settings: GatewaySettings) -> int:
    kept = wish.output_expires_after
    return kept.seconds if kept else settings.output_seconds


def _manifest(
    wish: CreateBatch, file: FileRecord, message_id: str, settings: GatewaySettings
) -> Manifest:
    now = int(time.time())
    output_seconds = _output_seconds(wish, settings)
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
        start=file.start,
        completion_window=wish.completion_window,
        created_at=now,
        expires_at=now + window_seconds(wish.completion_window),
        priority=wish.priority,
        metadata="" if wish.metadata is None else json.dumps(wish.metadata),
        output_seconds=output_seconds,
        deliver_results=_delivers(wish),
    )


def _delivers(wish: CreateBatch) -> bool:
    return wish.deliver is not None and wish.deliver.results


async def own_batch(state: State, tenant: str, batch_id: str) -> BatchRecord:
    """The tenant's batch. Raises NotFoundError, for another tenant's as for none."""
    batch = await state.batches.get(batch_id)
    return require_own(batch, tenant, batch_id)
