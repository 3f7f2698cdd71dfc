"""Reads a batch's input from its object, once and in chunks."""

import hashlib
from collections.abc import AsyncIterator

from shared.errors import BatchyardError, TransientError
from shared.openai.shapes import BatchError
from shared.state import BatchRecord
from shared.storage import ChangedError, Storage
from shared.tasks import beside

#: Up to this size, one call to S3 replaces one for the metadata and one for each chunk.
_SMALL_BYTES = 1024 * 1024


class UnansweredError(TransientError):
    """S3 fails for this input, and answers for other objects."""


class InputRefusedError(BatchyardError):
    """Nothing of the input can run; `count` is that of all problems, of which some are listed."""

    def __init__(self, problems: list[BatchError], count: int = 1) -> None:
        super().__init__("The input is refused.")
        self.problems = problems
        self.count = count


async def input_chunks(storage: Storage, record: BatchRecord) -> AsyncIterator[bytes]:
    """The bytes of the input. Raises NotFoundError, and ChangedError at the end for a wrong digest.

    The digest is only compared if the batch was created with one. Raises UnansweredError if S3
    fails for this object alone.
    """
    try:
        async for chunk in _chunks(storage, record):
            yield chunk
    except TransientError as error:
        await storage.check_reads()
        raise UnansweredError(f"S3 fails for the input alone. {error}") from error


def is_small(record: BatchRecord) -> bool:
    """Whether `input_chunks` gives the whole input as one chunk."""
    return record.number("size") <= _SMALL_BYTES


async def _chunks(storage: Storage, record: BatchRecord) -> AsyncIterator[bytes]:
    key, bucket, etag = (record.fields[name] for name in ("key", "bucket", "etag"))
    version, expected = record.fields.get("version_id"), record.fields.get("sha256")
    start, end = record.input_range
    digest = hashlib.sha256()
    if is_small(record):
        body = await storage.get(
            key, start=start, end=end, etag=etag, bucket=bucket, version_id=version
        )
        if expected:
            await beside(digest.update, body)
        yield body
    else:
        async for chunk in storage.stream(
            key, start=start, end=end, etag=etag, bucket=bucket, version_id=version
        ):
            if expected:
                await beside(digest.update, chunk)
            yield chunk
    if expected and digest.hexdigest() != expected:
        raise ChangedError(f"The object {key} does not have the SHA-256 that its batch names.")
