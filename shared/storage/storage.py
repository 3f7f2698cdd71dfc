"""Inputs, parts and outputs in S3: the one class that talks to an object store.

The `minio` client is synchronous; every call runs in a thread of this class's own pool.
"""

import asyncio
import json
import secrets
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Coroutine,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import aclosing
from copy import copy
from datetime import UTC, datetime, timedelta
from functools import partial
from urllib.parse import urlsplit

import urllib3
from minio.commonconfig import CopySource, Tags
from minio.deleteobjects import DeleteObject

from shared.errors import NotFoundError, SetupError, TransientError
from shared.storage.calls import THREADS, Calls
from shared.storage.errors import (
    ForbiddenError,
    LoginRefusedError,
    Place,
    StorageRefusedError,
)
from shared.storage.multipart import (
    COPIES_AT_ONCE,
    MAX_PARTS,
    MIN_PART_BYTES,
    PART_BYTES,
    MultipartUploads,
    ReadBytes,
    Stored,
    parts_of,
)
from shared.storage.requests import (
    LABEL_HEADER,
    MAX_LISTED,
    BucketRequests,
    Client,
    Listed,
    close,
)

#: The default for servers without regions: AWS's first one.
DEFAULT_REGION = "us-east-1"
_READ_SECONDS = 60.0
_CHUNK_BYTES = 1024 * 1024
#: The prefix of objects that only try what the server does.
PROBES = "probes/"
#: The one that stays. Of an object that is missing, S3 tells a login that may not list the bucket
#: that it must not be read.
READABLE = f"{PROBES}always"


class Storage:
    """One bucket of an S3 server.

    A call is tried `attempts` times. With `patience_seconds`, one that has no answer by then raises
    TransientError, whatever it waits for; without, it may take minutes. What S3 refuses for good is
    a StorageRefusedError.
    """

    def __init__(
        self,
        endpoint: str,
        access_key: str,
        secret_key: str,
        bucket: str,
        *,
        region: str = DEFAULT_REGION,
        patience_seconds: float | None = None,
        attempts: int = 5,
    ) -> None:
        url = urlsplit(endpoint)
        self._calls = Calls(attempts=attempts, patience_seconds=patience_seconds)
        self._connections = urllib3.PoolManager(
            maxsize=THREADS,
            timeout=urllib3.Timeout(connect=5, read=patience_seconds or _READ_SECONDS),
            retries=False,
        )
        self._client = Client(
            url.netloc,
            access_key=access_key,
            secret_key=secret_key,
            secure=url.scheme == "https",
            # Named, so that the client does not ask the server for it before each first call.
            region=region,
            http_client=self._connections,
        )
        self._region = region
        self._open(bucket)

    def of_bucket(self, bucket: str) -> "Storage":
        """Another bucket of the same server, over the same connections. Do not close it."""
        other = copy(self)
        other._open(bucket)  # noqa: SLF001  # it is one of us
        return other

    def _open(self, bucket: str) -> None:
        self.bucket = bucket
        self._requests = BucketRequests(self._client, bucket, region=self._region)
        self._uploads = MultipartUploads(self._client, bucket, self._calls)

    async def prepare(self) -> None:
        """Make the bucket if it is missing, and prove that it honours create-only puts.

        Raises SetupError if the server lacks the region or refuses the login, or if a second
        create-only put of one key is not refused with 412: two finalisers could then overwrite each
        other's result.
        """
        try:
            await self._calls.call(self._requests.make)
        except LoginRefusedError as error:
            raise SetupError(
                f"{error} Check BATCHYARD_S3_ACCESS_KEY, BATCHYARD_S3_SECRET_KEY and what that "
                f"login may do with the bucket '{self.bucket}'."
            ) from error
        probe = f"{PROBES}{secrets.token_hex(8)}"
        first = await self.create(probe, b"1")
        second = await self.create(probe, b"2")
        await self.remove([probe])
        if not first or second:
            raise SetupError(
                f"The S3 server of bucket '{self.bucket}' ignores create-only puts "
                "(If-None-Match: *), so results could be overwritten. Use a server that answers "
                "412, such as Ceph RGW, MinIO or AWS."
            )

    async def make_readable(self) -> None:
        """Make the object that `check_reads` asks for, for logins that may not list the bucket."""
        await self.create(READABLE, b"1")

    async def has_bucket(self) -> bool:
        """Whether the bucket is there."""
        return await self._calls.call(lambda: self._client.bucket_exists(self.bucket))

    async def ping(self) -> None:
        """Raise TransientError if the server does not answer."""
        await self._calls.call(lambda: self._client.bucket_exists(self.bucket))

    async def check_reads(self) -> None:
        """Raise TransientError unless S3 answers for an object of our own, asked once.

        If it does, an error with another object concerns that object alone.
        """
        place = Place(self.bucket, READABLE, None)
        try:
            await self._calls.call_once(lambda: self._requests.get(place, 0, None, None))
        except ForbiddenError as error:
            raise LoginRefusedError(f"{error}") from error
        except NotFoundError:
            return

    async def put(self, key: str, body: bytes) -> Stored:
        """Write a small object, replacing what is there."""
        return await self._calls.call(lambda: self._requests.put(key, body))

    async def create(self, key: str, body: bytes) -> bool:
        """Write a small object if the key is free; False when it is taken: the first one stays."""
        return await self._calls.call(lambda: self._requests.create(key, body)) is not None

    async def put_once(self, key: str, body: bytes, *, label: str = "") -> Stored | None:
        """Write a small object that stays as it is; None when the key holds another one.

        `label` is kept in its metadata, and has to have a checksum of the body: S3 gets no other.

        An object of the same bytes is ours: the answer to an earlier attempt may have been lost.
        """
        etag = await self._calls.call(lambda: self._requests.create(key, body, label))
        if etag is not None:
            return Stored(key, etag, len(body))
        try:
            return await self.stat(key) if await self.get(key) == body else None
        except NotFoundError:
            # It has been removed, together with its owner.
            return None

    async def get(
        self,
        key: str,
        *,
        start: int = 0,
        end: int | None = None,
        etag: str | None = None,
        bucket: str | None = None,
        version_id: str | None = None,
    ) -> bytes:
        """Bytes [start, end) of an object. Raises NotFoundError, ChangedError if `etag` differs."""
        if end is not None and end <= start:
            return b""
        place = Place(bucket or self.bucket, key, version_id or None)
        return await self._calls.call(lambda: self._requests.get(place, start, end, etag))

    async def stream(
        self,
        key: str,
        *,
        start: int = 0,
        end: int | None = None,
        etag: str | None = None,
        bucket: str | None = None,
        version_id: str | None = None,
    ) -> AsyncGenerator[bytes, None]:
        """An object's bytes in chunks of about 1 MiB; memory does not grow with its size."""
        if end is not None and end <= start:
            return
        place = Place(bucket or self.bucket, key, version_id or None)
        response = await self._calls.call(
            lambda: self._requests.open(place, start, end, etag), drop=close
        )
        try:
            while chunk := await self._calls.in_thread(partial(response.read, _CHUNK_BYTES)):
                yield chunk
        finally:
            close(response)

    async def upload(
        self, key: str, chunks: AsyncIterator[bytes], *, parts_at_once: int = 1
    ) -> Stored:
        """Write an object of unknown size as it arrives. Nothing is left behind if `chunks` raises.

        No thread waits for `chunks`, so slow sources do not delay others. S3 copies itself what is
        a `ReadBytes` of 8 MiB or more. Each more of the `parts_at_once` takes twice `PART_BYTES`.
        """
        async with aclosing(parts_of(chunks)) as parts:
            part = await anext(parts, b"")
            if len(part) < PART_BYTES:
                return await self.put(key, part)
            size = 0

            async def send(upload: str, sending: list[asyncio.Task[str]]) -> None:
                nonlocal part, size
                while part:
                    size += len(part)
                    sending.append(
                        asyncio.create_task(self._send_part(key, upload, len(sending), part))
                    )
                    # A copy takes no memory, so several may be on their way.
                    left = (COPIES_AT_ONCE if isinstance(part, ReadBytes) else parts_at_once) - 1
                    # A slow source keeps no part that was sent in memory.
                    part = b""
                    part = await anext(parts, b"")
                    latest = sending[-COPIES_AT_ONCE:]
                    for task in latest[: len(latest) - left]:
                        await task
                await asyncio.gather(*sending)

            etag = await self._uploads.write(key, send)
        return Stored(key, etag or (await self.stat(key)).etag, size)

    def _send_part(
        self, key: str, upload: str, index: int, part: bytes
    ) -> Coroutine[None, None, str]:
        if isinstance(part, ReadBytes):
            return self._uploads.copy(key, upload, index + 1, part.range)
        return self._uploads.send(key, upload, index, part)

    async def compose(self, key: str, sources: Sequence[Stored]) -> Stored:
        """Write an object that joins others in order; memory does not grow with its size.

        S3 copies them itself if all but the last have at least 5 MiB. Nothing is left behind if it
        fails. Raises NotFoundError when a source is gone.
        """
        sources = [source for source in sources if source.size]
        is_too_small = any(source.size < MIN_PART_BYTES for source in sources[:-1])
        if not sources or is_too_small or len(sources) > MAX_PARTS:
            return await self.upload(key, self._joined(sources))

        async def copy_all(upload: str, copying: list[asyncio.Task[str]]) -> None:
            for number, source in enumerate(sources, start=1):
                if len(copying) >= COPIES_AT_ONCE:
                    await asyncio.wait(copying[-COPIES_AT_ONCE:][:1])
                    copying[-COPIES_AT_ONCE].result()
                copying.append(asyncio.create_task(self._uploads.copy(key, upload, number, source)))
            await asyncio.wait(copying)

        etag = await self._uploads.write(key, copy_all)
        size = sum(source.size for source in sources)
        return Stored(key, etag or (await self.stat(key)).etag, size)

    async def copy(self, key: str, to: str) -> None:
        """Copy an object of up to 5 GiB with its metadata; S3 does it. Raises NotFoundError."""
        source = CopySource(self.bucket, key)
        await self._calls.call(lambda: self._client.copy_object(self.bucket, to, source))

    async def set_policy(self, policy: Mapping[str, object]) -> None:
        """Replace the bucket's access policy."""
        await self._calls.call(
            lambda: self._client.set_bucket_policy(self.bucket, json.dumps(policy))
        )

    async def tag(self, key: str, tags: Mapping[str, str]) -> None:
        """Give an object these tags and no others; access policies can ask for them.

        Raises NotFoundError when there is no object.
        """
        of_object = Tags.new_object_tags()
        of_object.update(tags)
        await self._calls.call(lambda: self._client.set_object_tags(self.bucket, key, of_object))

    async def require_tags(self) -> None:
        """Raise SetupError if the server does not let us tag objects."""
        probe = f"{PROBES}{secrets.token_hex(8)}"
        await self.put(probe, b"")
        try:
            await self.tag(probe, {"tenant": "probe"})
        except (StorageRefusedError, LoginRefusedError) as error:
            raise SetupError(
                f"The S3 server of bucket '{self.bucket}' does not let us tag objects. {error} "
                f"Allow s3:PutObjectTagging, or unset BATCHYARD_TAG_RESULTS."
            ) from error
        finally:
            await self.remove([probe])

    async def label(self, key: str) -> str:
        """The label of an object, empty for none. Raises NotFoundError."""
        found = await self._calls.call(lambda: self._requests.stat(Place(self.bucket, key, None)))
        return (found.metadata or {}).get(LABEL_HEADER, "")

    async def stat(
        self, key: str, *, bucket: str | None = None, version_id: str | None = None
    ) -> Stored:
        """Size and ETag. Raises NotFoundError."""
        place = Place(bucket or self.bucket, key, version_id or None)
        found = await self._calls.call(lambda: self._requests.stat(place))
        return Stored(key, found.etag or "", found.size or 0)

    async def keys(self, prefix: str) -> list[str]:
        """All keys that begin with `prefix`."""
        return await self._calls.call(
            lambda: [
                item.object_name or ""
                for item in self._client.list_objects(self.bucket, prefix, recursive=True)
            ]
        )

    async def pages(
        self, prefix: str, *, bucket: str | None = None
    ) -> AsyncGenerator[list[Listed], None]:
        """The objects whose keys begin with `prefix`, in order, a thousand at a time.

        Raises NotFoundError if a foreign bucket is missing or must not be listed.
        """
        after, place = None, Place(bucket or self.bucket, prefix, None)
        while True:
            page = await self._calls.call(partial(self._requests.page, place, after))
            if page:
                yield page
            if len(page) < MAX_LISTED:
                return
            after = page[-1].key

    async def folders(self, prefix: str) -> list[str]:
        """What follows `prefix` up to the next slash, each once."""
        return await self._calls.call(
            lambda: [
                (item.object_name or "").removeprefix(prefix).rstrip("/")
                for item in self._client.list_objects(self.bucket, prefix)
                if item.is_dir
            ]
        )

    async def keys_older_than(self, seconds: float, prefix: str) -> list[str]:
        """All keys that begin with `prefix` and were written longer ago."""
        before = datetime.now(UTC) - timedelta(seconds=seconds)
        return await self._calls.call(
            lambda: [
                item.object_name or ""
                for item in self._client.list_objects(self.bucket, prefix, recursive=True)
                if item.last_modified and item.last_modified < before
            ]
        )

    async def abort_older_than(self, seconds: float) -> int:
        """Drop what unfinished uploads have sent that were begun longer ago. Returns how many.

        MinIO lists no such uploads, and drops them itself after a day.
        """
        return await self._uploads.abort_older_than(seconds)

    async def remove(self, keys: Iterable[str]) -> None:
        """Delete objects. One that is gone already is no error."""
        doomed = [DeleteObject(key) for key in keys]
        failed = await self._calls.call(
            lambda: list(self._client.remove_objects(self.bucket, doomed))
        )
        if failed:
            raise TransientError(f"S3 did not delete {len(failed)} objects: {failed[0].code}")

    def signed_url(self, key: str, *, at: int, seconds: int) -> str:
        """A URL that reads the object without a key, from `at` (Unix seconds) for `seconds`.

        The same arguments give the same URL. S3 allows at most a week.
        """
        return self._client.get_presigned_url(
            "GET",
            self.bucket,
            key,
            expires=timedelta(seconds=seconds),
            request_date=datetime.fromtimestamp(at, UTC),
        )

    def close(self) -> None:
        """Give up the threads and connections."""
        self._calls.close()
        self._connections.clear()

    async def _joined(self, sources: Iterable[Stored]) -> AsyncGenerator[bytes, None]:
        for source in sources:
            async with aclosing(self.stream(source.key, etag=source.etag)) as chunks:
                async for chunk in chunks:
                    yield chunk
