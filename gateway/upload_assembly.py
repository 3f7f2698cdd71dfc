"""Assembles the parts of an upload once, even if several calls ask for it."""

import hashlib
import time
from collections.abc import Sequence
from contextlib import aclosing

from gateway.dependencies import Services
from gateway.file_store import objects, reserve, write_record
from gateway.own_adapters import require_adapter
from gateway.upload_rules import CompleteUpload, fingerprint, require_whole, wrong_md5
from shared import crash, ids
from shared.errors import InvalidInputError, NotFoundError, TransientError
from shared.state import FileRecord, UploadRecord
from shared.storage import Stored
from shared.tasks import beside

#: An upload is held this long for a completion that began in time; clients give up sooner.
_COMPLETION_SECONDS = 3600


async def complete(
    upload: UploadRecord, params: CompleteUpload, services: Services
) -> UploadRecord:
    """Assemble the parts, unless another call ends the upload first.

    Raises InvalidInputError for parts that are not the file.
    """
    uploads = services.state.uploads
    try:
        parts = await _parts(upload, params.part_ids, services)
        await uploads.hold(upload.id, seconds=_COMPLETION_SECONDS)
        crash.point("uploads.held")
        if params.md5:
            await _require_md5(params.md5.lower(), parts, services)
        file = await _assembled(upload, parts, services)
    except (InvalidInputError, NotFoundError) as error:
        # Parts are deleted when the upload ends, so a missing part may have existed until then.
        current = await uploads.get(upload.tenant, upload.id)
        if current.status != "pending":
            return current
        if isinstance(error, NotFoundError):
            raise TransientError(f"Parts of {upload.id} are not in S3.") from error
        raise
    outcome = await uploads.complete(upload.id, file, fingerprint(params.part_ids))
    current = await uploads.get(upload.tenant, upload.id)
    if current.file_id != file.id:
        await services.storage.remove(objects(file.key))
    if outcome == "swept":
        raise TransientError(f"{upload.id} took longer than its reservation.")
    return current


async def _parts(upload: UploadRecord, part_ids: Sequence[str], services: Services) -> list[Stored]:
    """The objects that make up the file, in order."""
    found = await services.state.uploads.parts(upload.id, part_ids)
    require_whole(
        upload.id, upload.bytes, part_ids, [part.size if part else None for part in found]
    )
    return [Stored(part.key, part.etag, part.size) for part in found if part]


async def _assembled(
    upload: UploadRecord, parts: Sequence[Stored], services: Services
) -> FileRecord:
    """The file that the upload becomes, still unseen. Each attempt makes its own."""
    file_id = ids.new_file_id()
    key = f"files/{upload.tenant}/{file_id}"
    await reserve(services, key)
    stored = await services.storage.compose(key, parts)
    crash.point("uploads.assembled")
    await require_adapter(services, upload.purpose, stored)
    file = FileRecord.stored(
        file_id,
        upload.tenant,
        stored,
        bucket=services.storage.bucket,
        created_at=int(time.time()),
        seconds=upload.file_seconds,
        filename=upload.filename,
        purpose=upload.purpose,
    )
    await write_record(services, file)
    return file


async def _require_md5(expected: str, parts: Sequence[Stored], services: Services) -> None:
    digest = hashlib.md5(usedforsecurity=False)
    for part in parts:
        async with aclosing(services.storage.stream(part.key, etag=part.etag)) as chunks:
            async for chunk in chunks:
                await beside(digest.update, chunk)
    if digest.hexdigest() != expected:
        raise wrong_md5(expected, digest.hexdigest())
