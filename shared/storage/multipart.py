"""Multipart uploads, from their first part to the object, or to nothing.

The steps of the client that this uses are private: its own upload reads its source in a thread.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import NamedTuple, Self
from urllib.parse import quote, unquote

from minio import Minio
from minio.datatypes import Part
from minio.error import S3Error

from shared.errors import TransientError
from shared.storage.calls import Calls
from shared.storage.errors import StorageRefusedError, translated
from shared.tasks import see_through

#: The size of a part, above S3's minimum of 5 MiB. One upload keeps a few parts in memory.
PART_BYTES = 8 * 1024 * 1024
#: The maximum memory of an upload: a part being sent, a copy of it, and the next part.
UPLOAD_BYTES = 3 * PART_BYTES
#: S3's limits: the size of every part but the last, and the number of parts.
MIN_PART_BYTES = 5 * 1024 * 1024
MAX_PARTS = 10_000
#: Each copy keeps a thread for as long as S3 takes, and other calls need threads too.
COPIES_AT_ONCE = 4
#: S3 is told within this time that an upload ends, if the process has to stop.
_ABANDON_SECONDS = 5.0


class Stored(NamedTuple):
    """An object as it was written."""

    key: str
    etag: str
    size: int


class ReadBytes(bytes):
    """Bytes that were read of an object of the bucket, and where they are in it."""

    key: str
    etag: str
    start: int

    @classmethod
    def at(cls, body: bytes, key: str, etag: str, start: int) -> Self:
        """These bytes, which begin at `start` of that object."""
        found = cls(body)
        found.key, found.etag, found.start = key, etag, start
        return found

    def after(self, count: int) -> "ReadBytes":
        """All but the first bytes."""
        return self.at(self[count:], self.key, self.etag, self.start + count)

    @property
    def range(self) -> "Range":
        return Range(self.key, self.etag, self.start, self.start + len(self))


class Range(NamedTuple):
    """Bytes [start, end) of an object."""

    key: str
    etag: str
    start: int
    end: int


class MultipartUploads:
    """Multipart uploads into one bucket."""

    def __init__(self, client: Minio, bucket: str, calls: Calls) -> None:
        self._client = client
        self._bucket = bucket
        self._calls = calls

    async def write(
        self,
        key: str,
        send: Callable[[str, list[asyncio.Task[str]]], Coroutine[None, None, None]],
    ) -> str:
        """Write an object. `send` gets the upload's id and a list for its parts: tasks for ETags.

        Returns the object's ETag, or an empty one if the server does not name it.
        """
        upload = await self._calls.call(
            lambda: self._begin(key), drop=partial(self._abort_late, key)
        )
        sending: list[asyncio.Task[str]] = []
        try:
            await send(upload, sending)
            etags = [task.result() for task in sending]
            # Called once: after a lost answer, a repeat could not tell what happened.
            return await self._calls.in_thread(lambda: self._complete(key, upload, etags))
        except BaseException:
            await see_through(self._abandon(key, upload, sending), seconds=_ABANDON_SECONDS)
            raise

    async def send(self, key: str, upload: str, index: int, part: bytes) -> str:
        return await self._calls.call(lambda: self._put_part(key, upload, index + 1, part))

    async def copy(self, key: str, upload: str, number: int, source: Stored | Range) -> str:
        return await self._calls.call(lambda: self._copy_part(key, upload, number, source))

    async def abort_older_than(self, seconds: float) -> int:
        """Drop what unfinished uploads have sent that were begun longer ago. Returns how many."""
        before = datetime.now(UTC) - timedelta(seconds=seconds)
        abandoned = await self._calls.call(lambda: self._begun_before(before))
        for key, upload in abandoned:
            # Ceph 16 encodes the keys that it lists and does not say so.
            for name in {key, unquote(key)}:
                await self._calls.call(partial(self._abort, name, upload))
        return len(abandoned)

    async def _abandon(self, key: str, upload: str, sending: list[asyncio.Task[str]]) -> None:
        # A part still on its way would outlive the abort.
        await asyncio.gather(*sending, return_exceptions=True)
        with suppress(TransientError, StorageRefusedError):
            await self._calls.call(lambda: self._abort(key, upload))

    def _abort_late(self, key: str, upload: str) -> None:
        """Abort what had been begun when nobody waited for it any more; tried once."""
        with suppress(TransientError, StorageRefusedError):
            translated(lambda: self._abort(key, upload))

    def _begin(self, key: str) -> str:
        return self._client._create_multipart_upload(self._bucket, key, {})  # noqa: SLF001

    def _put_part(self, key: str, upload: str, number: int, part: bytes) -> str:
        return self._client._upload_part(self._bucket, key, part, None, upload, number)  # noqa: SLF001

    def _copy_part(self, key: str, upload: str, number: int, source: Stored | Range) -> str:
        headers: dict[str, str | list[str] | tuple[str]] = {
            "x-amz-copy-source": quote(f"/{self._bucket}/{source.key}"),
            # Ceph 16 ignores it.
            "x-amz-copy-source-if-match": source.etag,
        }
        if isinstance(source, Range):
            headers["x-amz-copy-source-range"] = f"bytes={source.start}-{source.end - 1}"
        try:
            return self._client._upload_part_copy(self._bucket, key, upload, number, headers)[0]  # noqa: SLF001
        except ValueError as error:
            # S3 may answer 200 before it is done, and put the error into the body.
            raise TransientError(f"S3 did not copy {source.key}.") from error

    def _begun_before(self, moment: datetime) -> list[tuple[str, str]]:
        found, after = [], None
        while True:
            # By key alone: the client drops the other marker. Further uploads of one key are found
            # the next time.
            page = self._client._list_multipart_uploads(self._bucket, key_marker=after)  # noqa: SLF001
            found += [
                (upload.object_name, upload.upload_id or "")
                for upload in page.uploads
                if upload.initiated_time and upload.initiated_time < moment
            ]
            after = page.next_key_marker
            if not page.is_truncated or not after:
                return found

    def _complete(self, key: str, upload: str, etags: list[str]) -> str:
        """The object's ETag, empty if the server does not name it, as Ceph 16 does not."""
        parts = [Part(number, etag) for number, etag in enumerate(etags, start=1)]
        done = self._client._complete_multipart_upload(self._bucket, key, upload, parts)  # noqa: SLF001
        if done.object_name is None:
            # S3 may answer 200 before it is done, and put the error into the body.
            raise TransientError(f"S3 did not put {key} together.")
        return done.etag or ""

    def _abort(self, key: str, upload: str) -> None:
        try:
            self._client._abort_multipart_upload(self._bucket, key, upload)  # noqa: SLF001
        except S3Error as error:
            if error.code != "NoSuchUpload":
                raise


async def parts_of(chunks: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    """The same bytes in parts of at least `PART_BYTES`; only the last may be shorter.

    What is long enough of a `ReadBytes` is a part by itself, so that S3 can copy it.
    """
    # Copied once: a copy of megabytes stops the event loop for tens of milliseconds.
    gathered, size = list[bytes](), 0
    async for chunk in chunks:
        missing = max(0, PART_BYTES - size) if gathered else 0
        if isinstance(chunk, ReadBytes) and len(chunk) - missing >= PART_BYTES:
            if gathered:
                yield b"".join([*gathered, chunk[:missing]])
                gathered, size = [], 0
            yield chunk.after(missing) if missing else chunk
            continue
        gathered.append(chunk)
        size += len(chunk)
        if size >= PART_BYTES:
            yield b"".join(gathered)
            gathered, size = [], 0
    if size:
        yield b"".join(gathered)
