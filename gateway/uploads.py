"""OpenAI's Uploads API: a large file comes in parts, which S3 puts together at the end."""

import time
from collections.abc import AsyncIterator

from fastapi import APIRouter, Request

from gateway.auth import Tenant
from gateway.bodies import read_body
from gateway.dependencies import Services, Use
from gateway.file_rules import require_purpose, seconds_kept
from gateway.form import MAX_FORM_BYTES, Form, file_too_large
from gateway.limit_errors import no_room
from gateway.limits import require_room
from gateway.memory import upload_bytes
from gateway.own_adapters import require_takers
from gateway.route_docs import form_body, json_body
from gateway.upload_assembly import complete
from gateway.upload_rules import (
    MAX_PART_BYTES,
    MAX_PARTS,
    CompleteUpload,
    CreateUpload,
    completed_otherwise,
    fingerprint,
    full,
    require_size,
    too_late,
)
from shared import crash, ids
from shared.errors import NotFoundError
from shared.openai.shapes import Upload, UploadPart
from shared.state import PartRecord, UploadRecord

router = APIRouter()


@router.post("/uploads", openapi_extra=json_body(CreateUpload))
async def create_upload(request: Request, tenant: Tenant, services: Use) -> Upload:
    """Begin a file that comes in parts. It expires if it is not completed within an hour."""
    params, settings = await read_body(request, CreateUpload), services.settings
    require_purpose(params.purpose, params.filename, "filename")
    require_takers(services.catalog, params.purpose)
    max_bytes = settings.max_assembled_bytes
    if params.purpose == "batch":
        # No batch accepts more, so refuse the upload before gigabytes are sent.
        max_bytes = min(max_bytes, settings.max_upload_bytes)
    require_size(params.bytes, params.purpose, max_bytes=max_bytes)
    await require_room(services, tenant, params.bytes)
    now = int(time.time())
    upload = UploadRecord(
        id=ids.new_upload_id(),
        tenant=tenant,
        bytes=params.bytes,
        created_at=now,
        expires_at=now + settings.upload_seconds,
        filename=params.filename,
        purpose=params.purpose,
        file_seconds=seconds_kept(
            params.expires_after, params.purpose, batch_seconds=settings.file_seconds
        ),
    )
    request.state.made = upload.id
    await services.state.uploads.create(upload)
    crash.point("uploads.created")
    return upload.to_openai()


@router.post(
    "/uploads/{upload_id}/parts",
    openapi_extra=form_body({"data": {"type": "string", "format": "binary"}}, required=("data",)),
)
async def create_upload_part(
    upload_id: str, request: Request, tenant: Tenant, services: Use
) -> UploadPart:
    """Add some of the bytes, at most 64 MiB. Parts may come in any order and at the same time."""
    uploads, storage = services.state.uploads, services.storage
    upload = await uploads.get(tenant, upload_id)
    if upload.status != "pending":
        raise too_late("add a part to", upload_id, upload.status)
    announced = int(request.headers.get("content-length", 0))
    if announced > MAX_PART_BYTES + MAX_FORM_BYTES:
        raise file_too_large(MAX_PART_BYTES, "data")
    tenant_bytes = await require_room(services, tenant, max(1, announced - MAX_FORM_BYTES))
    form = Form(
        request.headers.get("content-type", ""),
        file_field="data",
        fields=(),
        max_file_bytes=MAX_PART_BYTES,
    )
    part_id = request.state.made = ids.new_part_id()
    with services.upload_memory.taken(tenant, upload_bytes(request)):
        chunks = _part_bytes(form, request.stream())
        stored = await storage.upload(f"{upload.prefix}{part_id}", chunks)
    crash.point("uploads.part_stored")
    outcome = await uploads.add_part(
        upload_id,
        PartRecord(part_id, stored.key, stored.etag, stored.size),
        # Clients send a part again if its answer was lost.
        max_bytes=2 * upload.bytes + MAX_PART_BYTES,
        max_parts=MAX_PARTS,
        tenant_bytes=tenant_bytes,
    )
    crash.point("uploads.part_added")
    if outcome != "ok":
        await storage.remove([stored.key])
        if outcome == "too_much":
            used = await services.state.files.stored_bytes(tenant)
            raise no_room(tenant, limit=tenant_bytes, used=used)
        if outcome == "full":
            raise full(upload_id, upload.bytes)
        raise too_late("add a part to", upload_id, outcome)
    return UploadPart(id=part_id, created_at=int(time.time()), upload_id=upload_id)


@router.post("/uploads/{upload_id}/complete", openapi_extra=json_body(CompleteUpload))
async def complete_upload(
    upload_id: str, request: Request, tenant: Tenant, services: Use
) -> Upload:
    """Make a File of the parts, in the order given. Repeating the call returns the same File."""
    params = await read_body(request, CompleteUpload)
    upload = await services.state.uploads.get(tenant, upload_id)
    if upload.status == "pending":
        upload = await complete(upload, params, services)
    if upload.status != "completed":
        raise too_late("complete", upload_id, upload.status)
    request.state.made = upload.file_id
    if upload.fingerprint != fingerprint(params.part_ids):
        raise completed_otherwise(upload_id)
    crash.point("uploads.completed")
    return await _with_file(upload, services)


@router.post("/uploads/{upload_id}/cancel")
async def cancel_upload(upload_id: str, tenant: Tenant, services: Use) -> Upload:
    """Discard the parts. Repeating the call changes nothing."""
    uploads = services.state.uploads
    await uploads.get(tenant, upload_id)
    status = await uploads.cancel(upload_id)
    if status != "cancelled":
        raise too_late("cancel", upload_id, status)
    return (await uploads.get(tenant, upload_id)).to_openai()


async def _part_bytes(form: Form, body: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    async for chunk in body:
        for part_chunk in form.feed(chunk):
            yield part_chunk
    form.finish()


async def _with_file(upload: UploadRecord, services: Services) -> Upload:
    """The upload with its file, unless that has been deleted since."""
    try:
        file = await services.state.files.get(upload.tenant, upload.file_id or "")
    except NotFoundError:
        return upload.to_openai()
    return upload.to_openai(file.to_openai())
