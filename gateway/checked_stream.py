"""A file's bytes on their way to a client, who gets the last of them only if all were right."""

import hashlib
from collections.abc import AsyncGenerator
from contextlib import aclosing

from shared.errors import BrokenObjectError
from shared.state import FileRecord
from shared.storage import ChangedError, Storage


async def checked_stream(storage: Storage, file: FileRecord) -> AsyncGenerator[bytes, None]:
    """The file's content in chunks of about 1 MiB.

    The last chunk is held back until the length, and the SHA-256 if it is known, have been
    compared. Raises NotFoundError if the object is gone, and BrokenObjectError if it is not the one
    that was stored: at the first chunk, or before the last one.
    """
    source = storage.stream(
        file.key, start=file.start, end=file.end, etag=file.etag, bucket=file.bucket
    )
    async with aclosing(_checked(source, file)) as chunks:
        try:
            async for chunk in chunks:
                yield chunk
        except ChangedError as error:
            raise BrokenObjectError(file.key, "it was replaced since it was stored") from error


async def _checked(
    source: AsyncGenerator[bytes, None], file: FileRecord
) -> AsyncGenerator[bytes, None]:
    digest, size, held = hashlib.sha256(), 0, b""
    async with aclosing(source) as chunks:
        async for chunk in chunks:
            if held:
                yield held
            held = chunk
            size += len(chunk)
            if file.sha256:
                digest.update(chunk)
    if size != file.bytes or file.sha256 not in ("", digest.hexdigest()):
        raise BrokenObjectError(file.key, "it has other bytes than when it was stored")
    if held:
        yield held
