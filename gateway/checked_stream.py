"""A file's bytes on their way to a client, who gets the last of them only if all were right."""

import hashlib
from collections.abc import AsyncGenerator
from contextlib import aclosing

from gateway.byte_range import ByteRange
from shared.errors import BrokenObjectError
from shared.state import FileRecord
from shared.storage import ChangedError, Storage


async def checked_stream(
    storage: Storage, file: FileRecord, part: ByteRange | None = None
) -> AsyncGenerator[bytes, None]:
    """The file's content in chunks of about 1 MiB, or a part of it, whose digest nobody knows.

    The last chunk is held back until the length, and the SHA-256 if it is known, have been
    compared. Raises NotFoundError if the object is gone, and BrokenObjectError if it is not the one
    that was stored: at the first chunk, or before the last one.
    """
    start, end, size, sha256 = file.start, file.end, file.bytes, file.sha256
    if part is not None:
        start, end = file.start + part.start, file.start + part.end
        size, sha256 = part.end - part.start, ""
    source = storage.stream(file.key, start=start, end=end, etag=file.etag, bucket=file.bucket)
    async with aclosing(_checked(source, file.key, size, sha256)) as chunks:
        try:
            async for chunk in chunks:
                yield chunk
        except ChangedError as error:
            raise BrokenObjectError(file.key, "it was replaced since it was stored") from error


async def _checked(
    source: AsyncGenerator[bytes, None], key: str, expected: int, sha256: str
) -> AsyncGenerator[bytes, None]:
    digest, size, held = hashlib.sha256(), 0, b""
    async with aclosing(source) as chunks:
        async for chunk in chunks:
            if held:
                yield held
            held = chunk
            size += len(chunk)
            if sha256:
                digest.update(chunk)
    if size != expected or sha256 not in ("", digest.hexdigest()):
        raise BrokenObjectError(key, "it has other bytes than when it was stored")
    if held:
        yield held
