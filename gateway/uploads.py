"""OpenAI's Uploads API: a large file comes in parts, which S3 puts together at the end."""

import asyncio
import hashlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field

from gateway.auth import Tenant
from gateway.dependencies import Services, Use
from gateway.fields import ExpiresAfter, read_body, require_one_of
from gateway.files import PURPOSES, objects, require_name, reserve, seconds_kept, write_record
from gateway.form import MAX_FORM_BYTES, Form, file_too_large
from shared import crash, ids
from shared.errors import InvalidInputError, NotFoundError, TransientError
from shared.openai.shapes import Upload, UploadPart
from shared.state import FileRecord, PartRecord, UploadRecord
from shared.storage import Stored

router = APIRouter()

#: 64 MiB: what the SDKs send.
MAX_PART_BYTES = 67_108_864
_MAX_PARTS = 10_000
_SHOWN_CHARACTERS = 100
#: For a completion that began in time; clients give up after ten minutes.
_COMPLETION_SECONDS = 3600


class CreateUpload(BaseModel):
    """The body of `create_upload`."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    bytes: int = Field(ge=0)
    filename: str = Field(min_length=1)
    mime_type: str = Field(max_length=255)
    purpose: str = Field(json_schema_extra={"enum": list(PURPOSES)})
    expires_after: ExpiresAfter | None = None


class CompleteUpload(BaseModel):
    """The body of `complete_upload`."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    part_ids: list[str]
    md5: str | None = Field(default=None, pattern="^[0-9a-fA-F]{32}$")


_UPLOAD: dict[str, Any] = {
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
_PART = {
    "id": "part_5b0c7ad9f4be4b6d8d6f8f6c1d2e3a47",
    "object": "upload.part",
    "created_at": 1_795_165_012,
    "upload_id": _UPLOAD["id"],
}
_FILE = {
    "id": "file-2YqK5nV0cT8rWm3Lx7BdAe",
    "object": "file",
    "bytes": _UPLOAD["bytes"],
    "created_at": 1_795_165_300,
    "expires_at": None,
    "filename": _UPLOAD["filename"],
    "purpose": _UPLOAD["purpose"],
    "status": "processed",
    "status_details": None,
}


def _refusal(message: str, param: str, code: str | None) -> dict[str, Any]:
    error = {"message": message, "type": "invalid_request_error", "param": param, "code": code}
    return {"content": {"application/json": {"example": {"error": error}}}}


def _answers(example: dict[str, Any], **refusals: dict[str, Any]) -> dict[int | str, Any]:
    return {
        200: {"content": {"application/json": {"example": example}}},
        **{
            int(status.removeprefix("http_")): {"description": "Refused", **refusal}
            for status, refusal in refusals.items()
        },
    }


_NOT_FOUND = _refusal(f"No such Upload object: {_UPLOAD['id']}", "id", None)


@router.post(
    "/uploads",
    responses=_answers(
        _UPLOAD,
        http_400=_refusal(
            "Invalid 'bytes': integer above maximum value. Expected a value <= 209715200 for "
            "purpose 'batch', but got 2147483648 instead.",
            "bytes",
            "integer_above_max_value",
        ),
    ),
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {
                    "schema": CreateUpload.model_json_schema(),
                    "example": {
                        "bytes": _UPLOAD["bytes"],
                        "filename": _UPLOAD["filename"],
                        "mime_type": "application/jsonl",
                        "purpose": _UPLOAD["purpose"],
                    },
                }
            },
        }
    },
)
async def create_upload(request: Request, tenant: Tenant, services: Use) -> Upload:
    """Begin a file that comes in parts. It expires if it is not completed within an hour."""
    wish = await read_body(request, CreateUpload)
    require_one_of(wish.purpose, PURPOSES, "purpose")
    require_name(wish.filename, wish.purpose, "filename")
    settings = services.settings
    most = settings.max_assembled_bytes
    if wish.purpose == "batch":
        # No batch would take more: said now rather than after gigabytes.
        most = min(most, settings.max_upload_bytes)
    if wish.bytes > most:
        raise InvalidInputError(
            f"Invalid 'bytes': integer above maximum value. Expected a value <= {most} for "
            f"purpose '{wish.purpose}', but got {wish.bytes} instead.",
            param="bytes",
            code="integer_above_max_value",
        )
    now = int(time.time())
    upload = UploadRecord(
        id=ids.new_upload_id(),
        tenant=tenant,
        bytes=wish.bytes,
        created_at=now,
        expires_at=now + settings.upload_seconds,
        filename=wish.filename,
        purpose=wish.purpose,
        file_seconds=seconds_kept(wish.expires_after, wish.purpose, services),
    )
    await services.state.uploads.create(upload)
    crash.point("uploads.created")
    return upload.to_openai()


@router.post(
    "/uploads/{upload_id}/parts",
    responses=_answers(
        _PART,
        http_400=_refusal(
            f"Cannot add a part to upload '{_UPLOAD['id']}' with status 'completed'.",
            "upload_id",
            "invalid_value",
        ),
        http_404=_NOT_FOUND,
    ),
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {
                "multipart/form-data": {
                    "schema": {
                        "type": "object",
                        "required": ["data"],
                        "properties": {"data": {"type": "string", "format": "binary"}},
                    }
                }
            },
        }
    },
)
async def create_upload_part(
    upload_id: str, request: Request, tenant: Tenant, services: Use
) -> UploadPart:
    """Add some of the bytes, at most 64 MiB; in any order, and any number at the same time."""
    uploads, storage = services.state.uploads, services.storage
    upload = await uploads.get(tenant, upload_id)
    if upload.status != "pending":
        raise _too_late("add a part to", upload_id, upload.status)
    if int(request.headers.get("content-length", 0)) > MAX_PART_BYTES + MAX_FORM_BYTES:
        raise file_too_large(MAX_PART_BYTES, "data")
    form = Form(
        request.headers.get("content-type", ""),
        file_field="data",
        fields=(),
        max_file_bytes=MAX_PART_BYTES,
    )
    part_id = ids.new_part_id()
    with services.upload_memory.taken(request):
        chunks = _part_bytes(form, request.stream())
        stored = await storage.upload(f"{upload.prefix}{part_id}", chunks)
    crash.point("uploads.part_stored")
    outcome = await uploads.add_part(
        upload_id,
        PartRecord(part_id, stored.key, stored.etag, stored.size),
        # Parts whose answers were lost are sent again.
        most_bytes=2 * upload.bytes + MAX_PART_BYTES,
        most_parts=_MAX_PARTS,
    )
    crash.point("uploads.part_added")
    if outcome != "ok":
        await storage.remove([stored.key])
        raise _full(upload) if outcome == "full" else _too_late("add a part to", upload_id, outcome)
    return UploadPart(id=part_id, created_at=int(time.time()), upload_id=upload_id)


@router.post(
    "/uploads/{upload_id}/complete",
    responses=_answers(
        {**_UPLOAD, "status": "completed", "file": _FILE},
        http_400=_refusal(
            "Invalid 'part_ids': the parts have 2147483000 bytes together, but upload "
            f"'{_UPLOAD['id']}' was created with 'bytes' 2147483648.",
            "part_ids",
            "invalid_value",
        ),
        http_404=_NOT_FOUND,
    ),
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {
                    "schema": CompleteUpload.model_json_schema(),
                    "example": {
                        "part_ids": [_PART["id"]],
                        "md5": "9b74c9897bac770ffc029102a200c5de",
                    },
                }
            },
        }
    },
)
async def complete_upload(
    upload_id: str, request: Request, tenant: Tenant, services: Use
) -> Upload:
    """Make a File of the parts, in the order given. To repeat it gives the same File."""
    wish = await read_body(request, CompleteUpload)
    upload = await services.state.uploads.get(tenant, upload_id)
    if upload.status == "pending":
        upload = await _completed(upload, wish, services)
    if upload.status != "completed":
        raise _too_late("complete", upload_id, upload.status)
    if upload.fingerprint != fingerprint(wish.part_ids):
        raise InvalidInputError(
            f"Invalid 'part_ids': upload '{upload_id}' has been completed with other parts.",
            param="part_ids",
            code="invalid_value",
        )
    crash.point("uploads.completed")
    return await _shown(upload, services)


@router.post(
    "/uploads/{upload_id}/cancel",
    responses=_answers(
        {**_UPLOAD, "status": "cancelled"},
        http_400=_refusal(
            f"Cannot cancel upload '{_UPLOAD['id']}' with status 'completed'.",
            "upload_id",
            "invalid_value",
        ),
        http_404=_NOT_FOUND,
    ),
)
async def cancel_upload(upload_id: str, tenant: Tenant, services: Use) -> Upload:
    """Throw the parts away. To repeat it does no harm."""
    uploads = services.state.uploads
    await uploads.get(tenant, upload_id)
    status = await uploads.cancel(upload_id)
    if status != "cancelled":
        raise _too_late("cancel", upload_id, status)
    return (await uploads.get(tenant, upload_id)).to_openai()


def in_order(
    upload: UploadRecord, part_ids: Sequence[str], found: Sequence[PartRecord | None]
) -> list[Stored]:
    """The objects of which the file consists. Raises InvalidInputError for what cannot be it.

    `found` are the upload's parts for those ids, None for each that it does not have.
    """
    for place, (part_id, part) in enumerate(zip(part_ids, found, strict=True)):
        if part is None:
            raise InvalidInputError(
                f"Invalid 'part_ids[{place}]': upload '{upload.id}' has no part "
                f"'{part_id[:_SHOWN_CHARACTERS]}'.",
                param=f"part_ids[{place}]",
                code="invalid_value",
            )
    for part_id, count in Counter(part_ids).items():
        if count > 1:
            raise InvalidInputError(
                f"Invalid 'part_ids': part '{part_id}' is named {count} times.",
                param="part_ids",
                code="invalid_value",
            )
    parts = [Stored(part.key, part.etag, part.size) for part in found if part]
    size = sum(part.size for part in parts)
    if size != upload.bytes:
        raise InvalidInputError(
            f"Invalid 'part_ids': the parts have {size} bytes together, but upload "
            f"'{upload.id}' was created with 'bytes' {upload.bytes}.",
            param="part_ids",
            code="invalid_value",
        )
    return parts


def fingerprint(part_ids: Sequence[str]) -> str:
    """The same for the same parts in the same order."""
    return hashlib.sha256("\0".join(part_ids).encode()).hexdigest()


async def _completed(
    upload: UploadRecord, wish: CompleteUpload, services: Services
) -> UploadRecord:
    """Put the parts together, unless somebody else ends the upload first."""
    uploads = services.state.uploads
    try:
        parts = in_order(upload, wish.part_ids, await uploads.parts(upload.id, wish.part_ids))
        await uploads.hold(upload.id, seconds=_COMPLETION_SECONDS)
        crash.point("uploads.held")
        if wish.md5:
            await _require_md5(wish.md5.lower(), parts, services)
        file = await _assembled(upload, parts, services)
    except (InvalidInputError, NotFoundError) as error:
        # Its parts go with its end: what is missing may have been there a moment ago.
        current = await uploads.get(upload.tenant, upload.id)
        if current.status != "pending":
            return current
        if isinstance(error, NotFoundError):
            raise TransientError(f"Parts of {upload.id} are not in S3.") from error
        raise
    outcome = await uploads.complete(upload.id, file, fingerprint(wish.part_ids))
    current = await uploads.get(upload.tenant, upload.id)
    if current.file_id != file.id:
        await services.storage.remove(objects(file.key))
    if outcome == "swept":
        raise TransientError(f"{upload.id} took longer than its reservation.")
    return current


async def _assembled(
    upload: UploadRecord, parts: Sequence[Stored], services: Services
) -> FileRecord:
    """The file that the upload becomes; nobody sees it yet. Each attempt makes one of its own."""
    file_id = ids.new_file_id()
    key = f"files/{upload.tenant}/{file_id}"
    await reserve(services, key)
    stored = await services.storage.compose(key, parts)
    crash.point("uploads.assembled")
    now = int(time.time())
    file = FileRecord(
        id=file_id,
        tenant=upload.tenant,
        bytes=stored.size,
        created_at=now,
        expires_at=None if upload.file_seconds is None else now + upload.file_seconds,
        filename=upload.filename,
        purpose=upload.purpose,
        bucket=services.storage.bucket,
        key=key,
        etag=stored.etag,
    )
    await write_record(services, file)
    return file


async def _require_md5(expected: str, parts: Sequence[Stored], services: Services) -> None:
    digest = hashlib.md5(usedforsecurity=False)
    for part in parts:
        async with aclosing(services.storage.stream(part.key, etag=part.etag)) as chunks:
            async for chunk in chunks:
                await asyncio.to_thread(digest.update, chunk)
    if digest.hexdigest() != expected:
        raise InvalidInputError(
            f"Invalid 'md5': expected '{expected}', but the parts in this order have "
            f"'{digest.hexdigest()}'.",
            param="md5",
            code="invalid_value",
        )


async def _part_bytes(form: Form, body: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    async for chunk in body:
        for piece in form.feed(chunk):
            yield piece
    form.finish()


async def _shown(upload: UploadRecord, services: Services) -> Upload:
    try:
        file = await services.state.files.get(upload.tenant, upload.file_id or "")
    except NotFoundError:
        # Deleted since.
        return upload.to_openai()
    return upload.to_openai(file.to_openai())


def _too_late(verb: str, upload_id: str, status: str) -> InvalidInputError | NotFoundError:
    if status == "missing":
        return NotFoundError(f"No such Upload object: {upload_id}", param="id")
    return InvalidInputError(
        f"Cannot {verb} upload '{upload_id}' with status '{status}'.",
        param="upload_id",
        code="invalid_value",
    )


def _full(upload: UploadRecord) -> InvalidInputError:
    return InvalidInputError(
        f"Upload '{upload.id}' takes no more parts: at most {_MAX_PARTS} parts, and not many more "
        f"bytes than its 'bytes' {upload.bytes}.",
        param="data",
        code="invalid_value",
    )
