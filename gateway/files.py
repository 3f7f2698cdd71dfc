"""OpenAI's Files API. Bytes are streamed to and from S3; records are in Redis."""

import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from http import HTTPStatus
from typing import Annotated, Literal

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import StreamingResponse
from starlette.requests import ClientDisconnect

from gateway.auth import Tenant
from gateway.byte_range import asked_range
from gateway.checked_stream import checked_stream
from gateway.dependencies import Services, Use
from gateway.downloads import opened
from gateway.file_rules import (
    FORM_FIELDS,
    PURPOSES,
    ExpiresAfter,
    disposition,
    expires_after,
    require_purpose,
    seconds_kept,
)
from gateway.file_store import keep, live_file, no_such_file, objects, reserve
from gateway.form import MAX_FORM_BYTES, Form, file_too_large
from gateway.limits import require_room
from gateway.memory import upload_bytes
from gateway.own_adapters import require_adapter, require_takers
from gateway.route_docs import form_body
from shared import crash, ids
from shared.errors import BrokenObjectError, CallerError, NotFoundError
from shared.ledger.file_records import note_deletion
from shared.openai.shapes import CursorPage, Deleted, File
from shared.state import FileRecord

router = APIRouter()

_PAGE = 10_000


@router.post(
    "/files",
    openapi_extra=form_body(
        {
            "file": {"type": "string", "format": "binary"},
            "purpose": {"type": "string", "enum": list(PURPOSES)},
            "expires_after": ExpiresAfter.model_json_schema(),
        },
        required=("file", "purpose"),
    ),
)
async def create_file(request: Request, tenant: Tenant, services: Use) -> File:
    """Upload a file in one call; larger ones come by an upload, in parts."""
    return (await receive_file(request, tenant, services)).to_openai()


async def receive_file(
    request: Request,
    tenant: str,
    services: Services,
    *,
    more_fields: Sequence[str] = (),
    check: Callable[[Mapping[str, str]], None] = lambda _: None,
) -> FileRecord:
    """Store the file of a form, which may have `more_fields` besides those of the API.

    `check` looks at the fields, and raises CallerError before anything is stored.
    """
    limit = services.settings.max_upload_bytes
    announced = int(request.headers.get("content-length", 0))
    if announced > limit + MAX_FORM_BYTES:
        raise file_too_large(limit, "file")
    # The form around the file is left out, so that the last byte of a tenant's room can be used.
    await require_room(services, tenant, max(1, announced - MAX_FORM_BYTES))
    form = Form(
        request.headers.get("content-type", ""),
        file_field="file",
        fields=(*FORM_FIELDS, *more_fields),
        max_file_bytes=limit,
    )
    file_id = request.state.made = ids.new_file_id()
    key = f"files/{tenant}/{file_id}"

    def check_all(fields: Mapping[str, str]) -> None:
        check(fields)
        require_takers(services.catalog, fields.get("purpose"))

    with services.upload_memory.taken(tenant, upload_bytes(request)):
        await reserve(services, key)
        crash.point("files.reserved")
        try:
            # An error in the form is raised while it is read, so no object is made.
            body = _file_bytes(form, request.stream(), check_all)
            stored = await services.storage.upload(key, body)
        except (CallerError, ClientDisconnect):
            await services.state.files.unreserve(*objects(key))
            raise
    crash.point("files.stored")
    now, fields = int(time.time()), form.fields()
    purpose = fields["purpose"]
    try:
        await require_adapter(services, purpose, stored)
    except CallerError:
        await services.storage.remove([key])
        await services.state.files.unreserve(*objects(key))
        raise
    seconds = seconds_kept(
        expires_after(fields), purpose, batch_seconds=services.settings.file_seconds
    )
    file = FileRecord.stored(
        file_id,
        tenant,
        stored,
        bucket=services.storage.bucket,
        created_at=now,
        seconds=seconds,
        filename=form.filename,
        purpose=purpose,
    )
    await keep(services, file)
    crash.point("files.kept")
    return file


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
    """Your files, newest first."""
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
    """One file, without its content."""
    return (await live_file(services.state, tenant, file_id)).to_openai()


@router.delete("/files/{file_id}")
async def delete_file(file_id: str, tenant: Tenant, services: Use) -> Deleted:
    """Delete a file. Batches that already read it read it to its end."""
    file = await live_file(services.state, tenant, file_id)
    await note_deletion(services.storage, file)
    crash.point("files.record_removed")
    # It was there: another call has deleted it, or this one, and the first answer was lost.
    with suppress(NotFoundError):
        await services.state.files.delete(tenant, file_id)
    crash.point("files.deleted")
    return Deleted(id=file_id)


@router.get(
    "/files/{file_id}/content",
    response_class=StreamingResponse,
    responses={206: {"description": "The part that `Range` asks for."}},
)
async def download_file(
    file_id: str,
    tenant: Tenant,
    services: Use,
    range_: Annotated[
        str | None,
        Header(alias="range", description="One range of bytes, as in `bytes=1000-`."),
    ] = None,
) -> StreamingResponse:
    """The file's content, or the part of it that `Range` asks for.

    A damaged file is an error. One of more than a mebibyte may break off before its end instead,
    if the damage is found when the answer has begun.
    """
    file = await live_file(services.state, tenant, file_id)
    part = asked_range(range_, file.bytes)
    chunks = checked_stream(services.storage, file, part)
    try:
        content = await opened(services, tenant, chunks)
    except NotFoundError as error:
        # Its object goes after its record.
        await live_file(services.state, tenant, file_id)
        if file.owned:
            raise BrokenObjectError(file.key, "it is missing") from error
        raise no_such_file(file_id) from error
    return StreamingResponse(
        content,
        status_code=HTTPStatus.OK if part is None else HTTPStatus.PARTIAL_CONTENT,
        media_type="application/octet-stream",
        headers={
            "accept-ranges": "bytes",
            "content-length": str(file.bytes if part is None else part.end - part.start),
            "content-disposition": disposition(file.filename),
            **({} if part is None else {"content-range": part.content_range}),
        },
    )


async def _file_bytes(
    form: Form, body: AsyncIterator[bytes], check: Callable[[Mapping[str, str]], None]
) -> AsyncIterator[bytes]:
    is_checked = False
    async for chunk in body:
        file_chunks = form.feed(chunk)
        if form.has_file and not is_checked and "purpose" in form.fields():
            # The purpose came before the file, so a bad one is refused before the bytes.
            _check(form, check)
            is_checked = True
        for file_chunk in file_chunks:
            yield file_chunk
    form.finish()
    _check(form, check)
    expires_after(form.fields())


def _check(form: Form, check: Callable[[Mapping[str, str]], None]) -> None:
    check(form.fields())
    require_purpose(form.fields().get("purpose"), form.filename, "file")
