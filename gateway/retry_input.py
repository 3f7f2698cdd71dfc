"""The input file of a retry: the lines of the requests that failed or never ran."""

import time
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress

from gateway.dependencies import Services
from gateway.file_store import keep, live_file, objects, reserve
from gateway.result_file import ResultFile, can_run, has_run
from gateway.retry_rules import RetryRows, file_gone, nothing_to_retry
from shared import ids
from shared.errors import BatchyardError, CallerError, NotFoundError, TransientError
from shared.input.request_lines import BYTE_ORDER_MARK
from shared.lifecycle import Status
from shared.state import BatchRecord, FileRecord


async def retry_input(
    services: Services, batch: BatchRecord, wanted: RetryRows, new_id: str
) -> FileRecord:
    """The input file of the batch `new_id`, which retries these rows of `batch`.

    Repeating the call gives the same file. Raises InvalidInputError if there is nothing to retry,
    or if a file that is needed is gone.
    """
    if batch.status is Status.FAILED:
        return await _whole_input(services, batch)
    file_id = batch.fields.get("error_file_id")
    if file_id is None:
        raise nothing_to_retry(batch.id, "every request of it succeeded")
    try:
        errors = await live_file(services.state, batch.tenant, file_id)
    except NotFoundError as error:
        raise file_gone(batch.id, "error", file_id) from error
    new_file_id = ids.retry_file_id(new_id)
    with suppress(NotFoundError):
        # An earlier call may have got this far.
        return await live_file(services.state, batch.tenant, new_file_id)
    key = f"files/{batch.tenant}/{new_file_id}"
    rows = _rows(ResultFile(services.storage, errors), wanted)
    if not await reserve(services, key, file_id=new_file_id):
        raise TransientError(f"Another call has just made {new_file_id}.")
    try:
        stored = await services.storage.upload(key, _lines_of(services, batch, rows))
    except CallerError as error:
        await services.state.files.unreserve(*objects(key))
        if isinstance(error, NotFoundError):
            raise file_gone(batch.id, "input", batch.fields["input_file_id"]) from error
        raise
    file = FileRecord.stored(
        new_file_id,
        batch.tenant,
        stored,
        bucket=services.storage.bucket,
        created_at=int(time.time()),
        seconds=services.settings.file_seconds,
        filename=f"{batch.id}_retry.jsonl",
        purpose="batch",
    )
    await keep(services, file)
    return file


async def _whole_input(services: Services, batch: BatchRecord) -> FileRecord:
    """The input of a batch that failed as a whole and so has no error file."""
    if "plan" not in batch.fields:
        raise nothing_to_retry(
            batch.id,
            "its input was refused; correct it by the batch's 'errors' and create a new batch",
        )
    try:
        return await live_file(services.state, batch.tenant, batch.fields["input_file_id"])
    except NotFoundError as error:
        raise file_gone(batch.id, "input", batch.fields["input_file_id"]) from error


async def _rows(errors: ResultFile, wanted: RetryRows) -> AsyncIterator[int]:
    """The rows to run again, in order."""
    async with aclosing(errors.lines(0)) as lines:
        async for line in lines:
            if can_run(line) and (wanted == "all" or has_run(line) == (wanted == "failed")):
                yield ids.row_of_result(line)


async def _lines_of(
    services: Services, batch: BatchRecord, rows: AsyncIterator[int]
) -> AsyncIterator[bytes]:
    """The input's lines of these rows."""
    wanted = await anext(rows, None)
    if wanted is None:
        raise nothing_to_retry(batch.id, "no request of it ended so")
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
