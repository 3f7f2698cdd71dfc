"""OpenAI's Files API: bytes go to S3 and come from it as a stream, records are in Redis."""

import json
import re
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import PurePath
from typing import Annotated, Literal
from urllib.parse import quote

from fastapi import APIRouter, Query, Request
from fastapi.responses import StreamingResponse
from starlette.requests import ClientDisconnect

from gateway.auth import Tenant
from gateway.dependencies import Services, Use
from gateway.fields import ExpiresAfter, missing, parsed, require_one_of
from gateway.form import MAX_FORM_BYTES, Form, file_too_large
from shared import crash, ids
from shared.errors import CallerError, InvalidInputError, NotFoundError, TransientError
from shared.openai.shapes import CursorPage, Deleted, File
from shared.retention import RESERVED_SECONDS
from shared.state import FileRecord, State

router = APIRouter()

PURPOSES = ("assistants", "batch", "fine-tune", "vision", "user_data", "evals")
#: Three spellings of one thing: the SDKs', that of Azure's examples, and one JSON part.
_FIELDS = (
    "purpose",
    "expires_after",
    *(f"expires_after[{name}]" for name in ("anchor", "seconds")),
    *(f"expires_after.{name}" for name in ("anchor", "seconds")),
)
_PAGE = 10_000
_MAX_NAME_CHARACTERS = 512


@router.post(
    "/files",
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {
                "multipart/form-data": {
                    "schema": {
                        "type": "object",
                        "required": ["file", "purpose"],
                        "properties": {
                            "file": {"type": "string", "format": "binary"},
                            "purpose": {"type": "string", "enum": list(PURPOSES)},
                            "expires_after": ExpiresAfter.model_json_schema(),
                        },
                    }
                }
            },
        }
    },
)
async def create_file(request: Request, tenant: Tenant, services: Use) -> File:
    limit = services.settings.max_upload_bytes
    if int(request.headers.get("content-length", 0)) > limit + MAX_FORM_BYTES:
        raise file_too_large(limit, "file")
    form = Form(
        request.headers.get("content-type", ""),
        file_field="file",
        fields=_FIELDS,
        max_file_bytes=limit,
    )
    file_id = ids.new_file_id()
    key = f"files/{tenant}/{file_id}"
    files = services.state.files
    with services.upload_memory.taken(request):
        await reserve(services, key)
        crash.point("files.reserved")
        try:
            # Whatever is wrong with the form is raised while it is read, so no object comes to be.
            stored = await services.storage.upload(key, _file_bytes(form, request.stream()))
        except (CallerError, ClientDisconnect):
            await files.unreserve(*objects(key))
            raise
    crash.point("files.stored")
    now, fields = int(time.time()), form.fields()
    seconds = seconds_kept(expires_after(fields), fields["purpose"], services)
    file = FileRecord(
        id=file_id,
        tenant=tenant,
        bytes=stored.size,
        created_at=now,
        expires_at=None if seconds is None else now + seconds,
        filename=form.filename,
        purpose=fields["purpose"],
        bucket=services.storage.bucket,
        key=key,
        etag=stored.etag,
    )
    await keep(services, file)
    crash.point("files.kept")
    return file.to_openai()


@router.get("/files")
async def list_files(
    tenant: Tenant,
    services: Use,
    *,
    after: str | None = None,
    limit: Annotated[int, Query(ge=0, le=_PAGE)] = _PAGE,
    order: Literal["asc", "desc"] = "desc",
    purpose: str | None = None,
) -> CursorPage[File]:
    found, has_more = await services.state.files.page(
        tenant,
        after=after,
        # The SDKs' own test suites ask for 0 and expect an answer.
        limit=limit or _PAGE,
        newest_first=order == "desc",
        purpose=purpose,
    )
    return CursorPage.of([file.to_openai() for file in found], has_more=has_more)


@router.get("/files/{file_id}")
async def retrieve_file(file_id: str, tenant: Tenant, services: Use) -> File:
    return (await live_file(services.state, tenant, file_id)).to_openai()


@router.delete("/files/{file_id}")
async def delete_file(file_id: str, tenant: Tenant, services: Use) -> Deleted:
    file = await live_file(services.state, tenant, file_id)
    # First of all: a rebuild of Redis would bring back what S3 still knows of.
    if file.has_record:
        await services.storage.remove([file.record_key])
    else:
        await services.storage.put(file.deleted_key, b"")
    crash.point("files.record_removed")
    await services.state.files.delete(tenant, file_id)
    crash.point("files.deleted")
    return Deleted(id=file_id)


@router.get("/files/{file_id}/content", response_class=StreamingResponse)
async def download_file(file_id: str, tenant: Tenant, services: Use) -> StreamingResponse:
    file = await live_file(services.state, tenant, file_id)
    chunks = services.storage.stream(
        file.key, start=file.start, end=file.end, etag=file.etag, bucket=file.bucket
    )
    try:
        # Errors have to come before the answer's first byte.
        first = await anext(chunks, b"")
    except NotFoundError as error:
        raise _no_such_file(file_id) from error
    return StreamingResponse(
        _chained(first, chunks),
        media_type="application/octet-stream",
        headers={
            "content-length": str(file.bytes),
            "content-disposition": disposition(file.filename),
        },
    )


async def live_file(state: State, tenant: str, file_id: str) -> FileRecord:
    """The tenant's file. Raises NotFoundError, also when its time is over."""
    file = await state.files.get(tenant, file_id)
    if file.has_expired:
        raise _no_such_file(file_id)
    return file


def objects(key: str) -> tuple[str, str]:
    """A file's object, and its record beside it."""
    return key, f"{key}.json"


async def reserve(services: Services, key: str, *, file_id: str = "") -> bool:
    """Before anything of a file is stored: what a death leaves behind is swept.

    False where this file has its objects already.
    """
    return await services.state.files.reserve(
        *objects(key), seconds=RESERVED_SECONDS, file_id=file_id
    )


async def write_record(services: Services, file: FileRecord) -> None:
    """Put beside the file's object what a rebuild of Redis needs."""
    await services.storage.put(file.record_key, json.dumps(file.to_fields()).encode())
    crash.point("files.recorded")


async def keep(services: Services, file: FileRecord) -> None:
    """Let everybody see a file whose object is stored. Raises TransientError if that took a day."""
    await write_record(services, file)
    if not await services.state.files.keep(file):
        await services.storage.remove(objects(file.key))
        raise TransientError(f"{file.id} took longer than its reservation.")


def disposition(filename: str) -> str:
    """The header that names a download, whatever signs the name holds."""
    plain = "".join(
        sign if sign.isascii() and sign.isprintable() and sign not in '"\\' else "_"
        for sign in filename
    )
    extended = "" if plain == filename else f"; filename*=UTF-8''{quote(filename, safe='')}"
    return f'attachment; filename="{plain}"{extended}'


async def _file_bytes(form: Form, body: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    is_checked = False
    async for chunk in body:
        pieces = form.feed(chunk)
        if form.has_file and not is_checked and "purpose" in form.fields():
            # The purpose came before the file: refuse before the bytes rather than after them.
            _check(form)
            is_checked = True
        for piece in pieces:
            yield piece
    form.finish()
    _check(form)
    expires_after(form.fields())


def _check(form: Form) -> None:
    purpose = form.fields().get("purpose")
    if not purpose:
        raise missing("purpose")
    require_one_of(purpose, PURPOSES, "purpose")
    require_name(form.filename, purpose, "file")


def require_name(filename: str, purpose: str, param: str) -> None:
    """Raise InvalidInputError for a name that no file of this purpose may have."""
    if len(filename) > _MAX_NAME_CHARACTERS:
        raise InvalidInputError(
            f"Invalid '{param}': the name is too long, at most {_MAX_NAME_CHARACTERS} characters.",
            param=param,
            code="string_above_max_length",
        )
    if purpose == "batch" and PurePath(filename).suffix.lower() not in ("", ".jsonl"):
        raise InvalidInputError("Invalid file format for Batch API. Must be .jsonl")


def expires_after(fields: dict[str, str]) -> ExpiresAfter | None:
    """What the form says, in any of its spellings. Raises InvalidInputError."""
    within = ("expires_after",)
    if "expires_after" in fields:
        return parsed(fields["expires_after"].encode(), ExpiresAfter, within=within)
    found: dict[str, str | int] = {}
    for name in ("anchor", "seconds"):
        for spelling in (f"expires_after[{name}]", f"expires_after.{name}"):
            if spelling in fields:
                text = fields[spelling]
                found[name] = int(text) if name == "seconds" and _is_number(text) else text
    if not found:
        return None
    return parsed(json.dumps(found).encode(), ExpiresAfter, within=within)


def _is_number(text: str) -> bool:
    return re.fullmatch("-?[0-9]{1,18}", text) is not None


def seconds_kept(wish: ExpiresAfter | None, purpose: str, services: Services) -> int | None:
    """How long a file is kept; None for ever."""
    if wish:
        return wish.seconds
    return services.settings.file_seconds if purpose == "batch" else None


def _no_such_file(file_id: str) -> NotFoundError:
    return NotFoundError(f"No such File object: {file_id}", param="id")


async def _chained(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    async with aclosing(rest):  # type: ignore[type-var]  # storage gives a generator
        yield first
        async for chunk in rest:
            yield chunk
