"""OpenAI's Batches API: creates batches, shows them and cancels them. Runs nothing."""

import json
import time
from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request, Response

from gateway.auth import OwnBatch, Tenant, require_own
from gateway.batch_bodies import batch_bodies, body_of, page_body
from gateway.batch_rules import (
    ADDITIONS,
    MAX_KEY_CHARACTERS,
    CreateBatch,
    check,
    delivers,
    fingerprint,
    output_seconds,
)
from gateway.bodies import read_body
from gateway.dependencies import Services, Use
from gateway.direct_routes import DirectRoute
from gateway.dry_run import DryRun
from gateway.file_store import live_file
from gateway.limits import reserve_batch
from gateway.route_docs import addition, json_body
from gateway.settings import GatewaySettings
from gateway.traces import trace_of
from shared import crash, ids
from shared.answer_cache import cache_seconds
from shared.bus.messages import window_seconds
from shared.errors import ConflictError, InvalidInputError, InvalidTransitionError, NotFoundError
from shared.ledger.commits import cancel
from shared.ledger.manifests import Manifest
from shared.lifecycle import Status
from shared.openai.shapes import Batch, CursorPage
from shared.state import BatchRecord, FileRecord, State
from shared.submission.accept import HTTP_KEY, accept, conflict
from shared.submission.datasets import Datasets
from shared.submission.opening import open_source, require_model, start_open
from shared.submission.tables import table_fields

router = APIRouter(route_class=DirectRoute)

_JSON = "application/json"
_PAGE = 20
#: The end of the year 9999.
_LAST_SECOND = 253_402_300_799


@router.post(
    "/batches",
    response_model=Batch | DryRun,
    openapi_extra=json_body(CreateBatch) | addition(ADDITIONS),
)
async def create_batch(
    request: Request,
    tenant: Tenant,
    services: Use,
    idempotency_key: Annotated[str | None, Header(max_length=MAX_KEY_CHARACTERS)] = None,
) -> Response:
    """Create a batch over an uploaded file, or an open one.

    With `dry_run` nothing is created; the answer says what would become of the batch.
    """
    params = await read_body(request, CreateBatch)
    if params.dry_run:
        request.state.dry_run = True
        report = await try_batch(tenant, services, params, idempotency_key)
        return Response(report.model_dump_json(), media_type=_JSON)
    batch = await new_batch(request, tenant, services, params, idempotency_key)
    return Response(body_of(batch), media_type=_JSON)


async def try_batch(
    tenant: str, services: Services, params: CreateBatch, idempotency_key: str | None = None
) -> DryRun:
    """What would become of the batch."""
    _check(services.settings, params, idempotency_key)
    _table(services, tenant, params)
    if params.input is not None:
        datasets = Datasets(services.state, services.storage, services.settings.places)
        return await services.dry_runs.run_dataset(
            tenant,
            await datasets.pinned(tenant, params.input),
            endpoint=params.endpoint,
            completion_window=params.completion_window,
        )
    return await services.dry_runs.run(
        await _input_file(services, tenant, params.input_file_id or "", "dry-run"),
        endpoint=params.endpoint,
        completion_window=params.completion_window,
    )


async def new_batch(
    request: Request,
    tenant: str,
    services: Services,
    params: CreateBatch,
    idempotency_key: str | None = None,
) -> Batch:
    """Create the batch, or find it by its idempotency key."""
    settings = services.settings
    _check(settings, params, idempotency_key)
    # Without a key, every call creates a new batch, whose id derives from the call.
    own_key = idempotency_key or params.idempotency_key
    message_id = HTTP_KEY + (own_key or request.state.request_id)
    batch_id = request.state.made = ids.batch_id(tenant, message_id)
    if known := await reserve_batch(request, services, tenant, batch_id, params.endpoint):
        # The known batch is returned even if its input is gone by now.
        seconds = output_seconds(params, default=settings.output_seconds)
        if known.fingerprint != fingerprint(params, seconds):
            raise conflict(message_id)
        return (await services.state.batches.get(batch_id)).to_openai()
    table = _table(services, tenant, params)
    source = {**await _source(services, tenant, params, batch_id), **table}
    source |= trace_of(request)
    manifest = _manifest(params, tenant, source, message_id, settings)
    if own_key:
        # Another call may have the key, so the manifest must be create-only.
        accepted = await accept(services.state, services.storage, manifest)
    else:
        accepted = await services.creations.accept(manifest)
    crash.point("gateway.accepted")
    # Read again, it would only show what has become of it since.
    record = accepted.created or await services.state.batches.get(accepted.batch_id)
    if params.open and record.status is Status.VALIDATING:
        # The dispatcher would as well, a moment later.
        await start_open(services.state, services.storage, services.catalog, record)
        record = await services.state.batches.get(accepted.batch_id)
    return record.to_openai()


@router.get(
    "/batches",
    response_model=CursorPage[Batch],
    openapi_extra=addition(
        {
            "updated_after": "Not in OpenAI's API. Returns only batches whose state changed after "
            "this time (Unix seconds), the last changed first. `after` works as usual. In OpenAI's "
            'SDK: `extra_query={"updated_after": 1795165000}`.',
            "idempotency_key": "Not in OpenAI's API. Returns only the batch that was created with "
            "this key, whatever the other parameters are: to find it again without sending its "
            "input again.",
        }
    ),
)
async def list_batches(
    tenant: Tenant,
    services: Use,
    *,
    after: str | None = None,
    limit: Annotated[int, Query(ge=0, le=100)] = _PAGE,
    updated_after: Annotated[float | None, Query(ge=0, le=_LAST_SECOND)] = None,
    idempotency_key: Annotated[str | None, Query(max_length=MAX_KEY_CHARACTERS)] = None,
) -> Response:
    """Your batches, newest first."""
    if idempotency_key is not None:
        found, has_more = await _with_key(services, tenant, idempotency_key), False
    else:
        found, has_more = await services.state.batches.page(
            tenant,
            after=after,
            # The SDKs' own test suites ask for 0 and expect an answer.
            limit=limit or _PAGE,
            changed_after=None if updated_after is None else int(updated_after * 1_000_000),
        )
    bodies = await batch_bodies(services.storage, found)
    page = page_body([record.id for record in found], bodies, has_more=has_more)
    return Response(page, media_type=_JSON)


@router.get("/batches/{batch_id}", response_model=Batch)  # noqa: FAST003  # the dependency that gives the batch reads it
async def retrieve_batch(batch: OwnBatch, services: Use) -> Response:
    """One batch as it is now."""
    [body] = await batch_bodies(services.storage, [batch])
    return Response(body, media_type=_JSON)


@router.post("/batches/{batch_id}/cancel")  # noqa: FAST003  # as above
async def cancel_batch(batch: OwnBatch, services: Use) -> Batch:
    """Cancel a batch. Results that it has by then are kept. Repeating the call changes nothing."""
    try:
        await cancel(services.state, services.storage, batch.id)
        crash.point("gateway.cancelled")
    except InvalidTransitionError as error:
        # Cancelling a cancelled batch again is no error.
        if error.status != Status.CANCELLED:
            raise ConflictError(f"Cannot cancel a batch with status '{error.status}'.") from error
    return (await services.state.batches.get(batch.id)).to_openai()


def _check(settings: GatewaySettings, params: CreateBatch, idempotency_key: str | None) -> None:
    check(
        params,
        idempotency_key,
        windows=settings.completion_windows,
        limits=settings.metadata_limits,
    )


async def _with_key(services: Services, tenant: str, key: str) -> list[BatchRecord]:
    """The batch of an idempotency key, if there is one."""
    try:
        return [await services.state.batches.get(ids.batch_id(tenant, HTTP_KEY + key))]
    except NotFoundError:
        return []


def _table(services: Services, tenant: str, params: CreateBatch) -> dict[str, Any]:
    """The table that the batch asks for: fields of its manifest."""
    return table_fields(
        tenant,
        params.output,
        params.input,
        endpoint=params.endpoint,
        places=services.settings.table_places,
    )


async def _source(
    services: Services, tenant: str, params: CreateBatch, batch_id: str
) -> dict[str, Any]:
    """Where a new batch's input is: fields of its manifest."""
    if params.open:
        model = params.model or ""
        await require_model(services.state, services.catalog, tenant, params.endpoint, model)
        return open_source(services.storage.bucket, tenant, batch_id, model)
    if params.input is not None:
        datasets = Datasets(services.state, services.storage, services.settings.places)
        return await datasets.kept(batch_id, await datasets.pinned(tenant, params.input))
    file = await _input_file(services, tenant, params.input_file_id or "", batch_id)
    return {
        "input_file_id": file.id,
        "bucket": file.bucket,
        "key": file.key,
        "etag": file.etag,
        "size": file.bytes,
        "start": file.start,
    }


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
    """A file without an object, so that the batch fails because of it."""
    return FileRecord.missing(
        file_id,
        tenant,
        bucket=services.storage.bucket,
        key=f"batches/{batch_id}/no-input",
    )


def _manifest(
    params: CreateBatch,
    tenant: str,
    source: Mapping[str, Any],
    message_id: str,
    settings: GatewaySettings,
) -> Manifest:
    now = int(time.time())
    seconds = output_seconds(params, default=settings.output_seconds)
    return Manifest(
        id=ids.batch_id(tenant, message_id),
        tenant=tenant,
        message_id=message_id,
        fingerprint=fingerprint(params, seconds),
        door="http",
        endpoint=params.endpoint,
        completion_window=params.completion_window,
        created_at=now,
        expires_at=now + window_seconds(params.completion_window),
        priority=params.priority,
        metadata="" if params.metadata is None else json.dumps(params.metadata),
        output_seconds=seconds,
        deliver_results=delivers(params),
        cache_seconds=cache_seconds(params.cache, most=settings.cache_seconds),
        **source,
    )


async def own_batch(state: State, tenant: str, batch_id: str) -> BatchRecord:
    """The tenant's batch. Raises NotFoundError, also for another tenant's batch."""
    batch = await state.batches.get(batch_id)
    return require_own(batch, tenant, batch_id)
