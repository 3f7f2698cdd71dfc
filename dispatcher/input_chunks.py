"""Reads a batch's input out of its object, once and in pieces."""

import asyncio
import hashlib
from collections.abc import AsyncIterator

from shared.errors import TransientError
from shared.state import BatchRecord
from shared.storage import ChangedError, Storage

#: Up to this size, one call to the store replaces one for the head and one for each piece.
_SMALL_BYTES = 1024 * 1024


class UnansweredError(TransientError):
    """S3 fails for this input, and answers for other objects."""


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


async def _chunks(storage: Storage, record: BatchRecord) -> AsyncIterator[bytes]:
    key, bucket, etag = (record.fields[name] for name in ("key", "bucket", "etag"))
    version, expected = record.fields.get("version_id"), record.fields.get("sha256")
    start, end = record.input_range
    digest = hashlib.sha256()
    if record.number("size") <= _SMALL_BYTES:
        body = await storage.get(
            key, start=start, end=end, etag=etag, bucket=bucket, version_id=version
        )
        if expected:
            digest.update(body)
        yield body
    else:
        async for chunk in storage.stream(
            key, start=start, end=end, etag=etag, bucket=bucket, version_id=version
        ):
            if expected:
                await asyncio.to_thread(digest.update, chunk)
            yield chunk
    if expected and digest.hexdigest() != expected:
        raise ChangedError(f"The object {key} does not have the SHA-256 that its batch names.")
