"""A new batch of those requests of an ended one that failed or were never run."""

import hashlib
import json
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress
from typing import Annotated, Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field

from gateway.auth import Tenant
from gateway.batches import METADATA_SCHEMA, own_batch
from gateway.dependencies import Services, Use
from gateway.fields import (
    MetadataLimits,
    metadata_limits,
    read_body,
    require_one_of,
    require_small,
)
from gateway.files import keep, live_file, objects, reserve
from gateway.limits import reserve_batch
from gateway.result_file import ResultFile, has_run
from shared import crash, ids
from shared.bus.messages import window_seconds
from shared.errors import (
    BatchyardError,
    CallerError,
    ConflictError,
    InvalidInputError,
    NotFoundError,
    TransientError,
)
from shared.input.request_lines import BYTE_ORDER_MARK
from shared.ledger.manifests import Manifest
from shared.ledger.packs import read_manifest
from shared.lifecycle import FINAL, Status
from shared.openai.shapes import Batch
from shared.state import BatchRecord, FileRecord
from shared.submission.accept import accept

router = APIRouter()

#: Of the new batch's metadata: whose requests it runs again.
_LINK = "retry_of"


class RetryBatch(BaseModel):
    """The body of `retry_batch`; what is left out is as in the batch that is retried."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    rows: Literal["all", "failed", "not_run"] = Field(
        default="all",
        description="`failed`: those with an error response; `not_run`: those that expired or were "
        "cancelled before they ran, or whose model could not be started",
    )
    completion_window: str | None = None
    metadata: Annotated[dict[str, str], Field(json_schema_extra=METADATA_SCHEMA)] | None = None
    priority: int | None = Field(default=None, ge=0, le=9)
    idempotency_key: str | None = Field(
        default=None, max_length=255, description="another one makes another batch of the same rows"
    )


@router.post(
    "/batches/{batch_id}/retry",
    openapi_extra={
        "x-batchyard": "An addition to OpenAI's API. SDK: client.post(path, cast_to=Batch, "
        "body={'rows': 'failed'}); the body may be left out.",
        "requestBody": {
            "content": {"application/json": {"schema": RetryBatch.model_json_schema()}},
        },
    },
)
async def retry_batch(request: Request, batch_id: str, tenant: Tenant, services: Use) -> Batch:
    """Run the failed requests of an ended batch again, as a batch of their own.

    The new batch has an input file with just these lines, and the old one's id as `retry_of` in its
    metadata. The same call again gives the same batch. 409 while the batch has not ended; 400 when
    nothing failed, or when its input or error file is gone. Of a batch that failed as a whole after
    its input was accepted, all requests are run again.
    """
    has_body = request.headers.get("content-length", "0") != "0" or (
        "transfer-encoding" in request.headers
    )
    wish = await read_body(request, RetryBatch) if has_body else RetryBatch()
    if wish.completion_window is not None:
        windows = services.settings.completion_windows
        require_one_of(wish.completion_window, windows, "completion_window")
    limits = metadata_limits(services.settings)
    require_small(wish.metadata or {}, limits)
    batch = await own_batch(services.state, tenant, batch_id)
    if batch.status not in FINAL:
        raise ConflictError(
            f"Cannot retry a batch with status '{batch.status}': wait for its end, or cancel it."
        )
    message_id = f"retry:{batch_id}:{_digest(wish)}"
    new_id = ids.batch_id(tenant, message_id)
    try:
        manifest = await read_manifest(services.storage, new_id)
    except NotFoundError:
        metadata = _metadata(batch, wish, limits)
        await reserve_batch(request, services, tenant, new_id, batch.fields["endpoint"])
        file = await _input(services, batch, wish, new_id)
        manifest = _manifest(services, batch, wish, file, message_id=message_id, metadata=metadata)
    await accept(services.state, services.storage, manifest)
    crash.point("gateway.retried")
    return (await own_batch(services.state, tenant, new_id)).to_openai()


def _digest(wish: RetryBatch) -> str:
    told = json.dumps(wish.model_dump(mode="json"), sort_keys=True)
    return hashlib.sha256(told.encode()).hexdigest()[:32]


async def _input(
    services: Services, batch: BatchRecord, wish: RetryBatch, new_id: str
) -> FileRecord:
    """The new batch's input file; made again by a repeat, it is the same."""
    if batch.status is Status.FAILED:
        return await _whole_input(services, batch)
    file_id = batch.fields.get("error_file_id")
    if file_id is None:
        raise _nothing(batch, "no request of it failed or was left out")
    try:
        errors = await live_file(services.state, batch.tenant, file_id)
    except NotFoundError as error:
        raise _gone(batch, "error", file_id) from error
    new_file_id = ids.retry_file_id(new_id)
    with suppress(NotFoundError):
        # A call before this one came so far.
        return await live_file(services.state, batch.tenant, new_file_id)
    key = f"files/{batch.tenant}/{new_file_id}"
    rows = _rows(ResultFile(services.storage, errors), wish)
    if not await reserve(services, key, file_id=new_file_id):
        raise TransientError(f"Another call has just made {new_file_id}.")
    try:
        stored = await services.storage.upload(key, _picked(services, batch, rows))
    except CallerError as error:
        await services.state.files.unreserve(*objects(key))
        if isinstance(error, NotFoundError):
            raise _gone(batch, "input", batch.fields["input_file_id"]) from error
        raise
    now = int(time.time())
    file = FileRecord(
        id=new_file_id,
        tenant=batch.tenant,
        bytes=stored.size,
        created_at=now,
        expires_at=now + services.settings.file_seconds,
        filename=f"{batch.id}_retry.jsonl",
        purpose="batch",
        bucket=services.storage.bucket,
        key=key,
        etag=stored.etag,
    )
    await keep(services, file)
    return file


async def _whole_input(services: Services, batch: BatchRecord) -> FileRecord:
    """The input of a batch that has no error file, since it failed as a whole."""
    if "plan" not in batch.fields:
        raise _nothing(
            batch, "its input was refused; correct it by the batch's 'errors' and create a new one"
        )
    try:
        return await live_file(services.state, batch.tenant, batch.fields["input_file_id"])
    except NotFoundError as error:
        raise _gone(batch, "input", batch.fields["input_file_id"]) from error


async def _rows(errors: ResultFile, wish: RetryBatch) -> AsyncIterator[int]:
    """The rows to run again, in order."""
    async with aclosing(errors.lines(0)) as lines:
        async for line in lines:
            if wish.rows == "all" or has_run(line) == (wish.rows == "failed"):
                yield ids.row_of_result(line)


async def _picked(
    services: Services, batch: BatchRecord, rows: AsyncIterator[int]
) -> AsyncIterator[bytes]:
    """The input's lines of these rows."""
    wanted = await anext(rows, None)
    if wanted is None:
        raise _nothing(batch, "no request of it ended so")
    row = 0
    async for line in _lines(services, batch):
        if not line.strip():
            continue
        if row == wanted:
            yield line + b"\n"
            if (wanted := await anext(rows, None)) is None:
                return
        row += 1
    raise BatchyardError(f"The input of batch {batch.id} has no row {wanted}.")


async def _lines(services: Services, batch: BatchRecord) -> AsyncIterator[bytes]:
    key, bucket, etag = (batch.fields[name] for name in ("key", "bucket", "etag"))
    rest, is_first = b"", True
    version = batch.fields.get("version_id")
    start, end = batch.input_range
    source = services.storage.stream(
        key, start=start, end=end, etag=etag, bucket=bucket, version_id=version
    )
    async with aclosing(source) as chunks:
        async for chunk in chunks:
            whole = rest + chunk
            if is_first:
                whole, is_first = whole.removeprefix(BYTE_ORDER_MARK), False
            *lines, rest = whole.split(b"\n")
            for line in lines:
                yield line
    yield rest


def _manifest(
    services: Services,
    batch: BatchRecord,
    wish: RetryBatch,
    file: FileRecord,
    *,
    message_id: str,
    metadata: dict[str, str],
) -> Manifest:
    now = int(time.time())
    window = wish.completion_window or batch.fields["completion_window"]
    return Manifest(
        id=ids.batch_id(batch.tenant, message_id),
        tenant=batch.tenant,
        message_id=message_id,
        fingerprint=_digest(wish),
        door="http",
        endpoint=batch.fields["endpoint"],
        input_file_id=file.id,
        bucket=file.bucket,
        key=file.key,
        etag=file.etag,
        size=file.bytes,
        start=file.start,
        completion_window=window,
        created_at=now,
        expires_at=now + window_seconds(window),
        priority=batch.number("priority") if wish.priority is None else wish.priority,
        metadata=json.dumps(metadata),
        output_seconds=batch.number("output_seconds") or services.settings.output_seconds,
    )


def _metadata(batch: BatchRecord, wish: RetryBatch, limits: MetadataLimits) -> dict[str, str]:
    kept = wish.metadata
    if kept is None:
        kept = json.loads(batch.fields.get("metadata", "{}"))
    metadata = {**kept, _LINK: batch.id}
    # The link is ours: alone it is always allowed.
    if kept and len(metadata) > limits.pairs:
        raise InvalidInputError(
            f"Invalid 'metadata': too many properties. '{_LINK}' is added to them: give at most "
            f"{max(0, limits.pairs - 1)} others.",
            param="metadata",
            code="object_above_max_properties",
        )
    return metadata


def _nothing(batch: BatchRecord, why: str) -> InvalidInputError:
    return InvalidInputError(
        f"There is nothing to retry in batch '{batch.id}': {why}.",
        param="batch_id",
        code="nothing_to_retry",
    )


def _gone(batch: BatchRecord, kind: str, file_id: str) -> InvalidInputError:
    return InvalidInputError(
        f"Cannot retry batch '{batch.id}': its {kind} file {file_id} was deleted, changed or has "
        "expired.",
        param="batch_id",
        code=f"{kind}_file_gone",
    )
