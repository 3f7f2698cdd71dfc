"""Inputs, parts and outputs in S3: the one class that talks to an object store.

The `minio` client is synchronous; every call runs in a thread of this class's own pool.
"""

import asyncio
import io
import json
import secrets
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from http import HTTPStatus
from itertools import islice
from typing import Literal, NamedTuple, TypeVar
from urllib.parse import quote, unquote, urlsplit

import stamina
import urllib3
from minio import Minio
from minio.commonconfig import Tags
from minio.datatypes import Object, Part
from minio.deleteobjects import DeleteObject
from minio.error import InvalidResponseError, S3Error, ServerError

from shared.errors import BatchyardError, NotFoundError, SetupError, TransientError

T = TypeVar("T")

#: What servers take who have no regions; AWS's first one.
DEFAULT_REGION = "us-east-1"
_THREADS = 24
_READ_SECONDS = 60.0
#: Of a multipart upload, above S3's least of 5 MiB; one upload keeps a few of them in memory.
_PART_BYTES = 8 * 1024 * 1024
#: The most that an upload keeps in memory: a part on its way, a copy of it, and the next one.
UPLOAD_BYTES = 3 * _PART_BYTES
_CHUNK_BYTES = 1024 * 1024
#: What S3 asks of every part of a multipart upload but the last, and how many it takes.
_LEAST_PART_BYTES = 5 * 1024 * 1024
_MOST_PARTS = 10_000
#: Each keeps a thread for as long as S3 takes, and others need threads as well.
_COPIES_AT_ONCE = 4
#: Of one answer to a listing; S3 gives no more.
_LISTED = 1000
#: Under no prefix of ours, so that nobody makes it.
_PROBE = "probes/never"
_LABEL = "x-amz-meta-label"
_NETWORK_ERRORS = (urllib3.exceptions.HTTPError, OSError)
#: S3's own words for "not now"; room is what operators make.
_BUSY = {
    "InternalError",
    "OperationAborted",
    "QuotaExceeded",
    "RequestTimeout",
    "ServiceUnavailable",
    "SlowDown",
}
#: S3's own words for a login that it does not take. Operators mend that, and calls wait for it.
_LOGIN_REFUSED = {
    "AccessDenied",
    "AccountProblem",
    "AllAccessDisabled",
    "ExpiredToken",
    "InvalidAccessKeyId",
    "InvalidToken",
    "RequestTimeTooSkewed",
    "SignatureDoesNotMatch",
}
#: The words of Ceph, AWS and MinIO for a bucket in a region that is not theirs.
_NO_SUCH_REGION = {
    "InvalidLocationConstraint",
    "IllegalLocationConstraintException",
    "InvalidRegion",
}
_ABSENT = {"NoSuchBucket", "NoSuchKey", "NoSuchVersion"}
_CHANGED = "PreconditionFailed"
_SERVER_ERROR = 500


class Stored(NamedTuple):
    """An object as it was written."""

    key: str
    etag: str
    size: int


class Listed(NamedTuple):
    """An object as a listing names it; the time in Unix seconds."""

    key: str
    etag: str
    size: int
    modified_at: float


class ChangedError(NotFoundError):
    """The object is not the one whose ETag was asked for."""


class ForbiddenError(NotFoundError):
    """The server does not let us read the object; some say this of one that is not there."""


class LoginRefusedError(TransientError):
    """S3 does not take our login for a call; the operator gives it the right to, and it works."""


class StorageRefusedError(BatchyardError):
    """S3 refuses a call, and would refuse it again; `code` is S3's own word for the reason."""

    def __init__(self, code: str) -> None:
        super().__init__(f"S3 refuses the call: {code}.")
        self.code = code


def why_unreadable(error: NotFoundError) -> Literal["changed", "forbidden", "missing"]:
    """The reason, out of what reading an object raises."""
    match error:
        case ChangedError():
            return "changed"
        case ForbiddenError():
            return "forbidden"
        case _:
            return "missing"


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
        self.bucket = bucket
        self._region = region
        self._patience_seconds = patience_seconds
        self._attempts = attempts
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="storage")
        self._connections = urllib3.PoolManager(
            maxsize=_THREADS,
            timeout=urllib3.Timeout(connect=5, read=patience_seconds or _READ_SECONDS),
            retries=False,
        )
        self._client = Minio(
            url.netloc,
            access_key=access_key,
            secret_key=secret_key,
            secure=url.scheme == "https",
            # Named, so that the client does not ask the server for it before each first call.
            region=region,
            http_client=self._connections,
        )

    async def prepare(self) -> None:
        """Make the bucket if it is missing, and prove that it honours create-only puts.

        Raises SetupError if the server lacks the region or does not take the login, or if a second
        create-only put of one key is not refused with 412: two finalisers could then overwrite each
        other's result.
        """
        try:
            await self._call(self._make_bucket)
        except LoginRefusedError as error:
            raise SetupError(
                f"{error} Check BATCHYARD_S3_ACCESS_KEY, BATCHYARD_S3_SECRET_KEY and what that "
                f"login may do with the bucket '{self.bucket}'."
            ) from error
        probe = f"probes/{secrets.token_hex(8)}"
        first = await self.create(probe, b"1")
        second = await self.create(probe, b"2")
        await self.remove([probe])
        if not first or second:
            raise SetupError(
                f"The S3 server of bucket '{self.bucket}' ignores create-only puts "
                "(If-None-Match: *), so results could be overwritten. Use a server that answers "
                "412, such as Ceph RGW, MinIO or AWS."
            )

    async def ping(self) -> None:
        """Raise TransientError when the server does not answer."""
        await self._call(lambda: self._client.bucket_exists(self.bucket))

    async def check_reads(self) -> None:
        """Raise TransientError unless S3 answers for an object of our own, asked once.

        Where it does, an error that another object meets is that object's own.
        """
        place = _Place(self.bucket, _PROBE, None)
        async with _patience(self._patience_seconds):
            try:
                await self._in_thread(lambda: self._get(place, 0, None, None))
            except ForbiddenError as error:
                raise LoginRefusedError(f"{error}") from error
            except NotFoundError:
                return

    async def put(self, key: str, body: bytes) -> Stored:
        """Write a small object, replacing what is there."""
        return await self._call(lambda: self._put(key, body))

    async def create(self, key: str, body: bytes) -> bool:
        """Write a small object if the key is free; False when it is taken: the first one stays."""
        return await self._call(lambda: self._create(key, body)) is not None

    async def put_once(self, key: str, body: bytes, *, label: str = "") -> Stored | None:
        """Write a small object that stays as it is; None when the key holds another one.

        `label` is kept beside it.

        One of the same bytes is taken for our own: the answer to a try before may have been lost.
        """
        etag = await self._call(lambda: self._create(key, body, label))
        if etag is not None:
            return Stored(key, etag, len(body))
        try:
            return await self.stat(key) if await self.get(key) == body else None
        except NotFoundError:
            # It was removed meanwhile, with what it belonged to.
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
        place = _Place(bucket or self.bucket, key, version_id or None)
        return await self._call(lambda: self._get(place, start, end, etag))

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
        place = _Place(bucket or self.bucket, key, version_id or None)
        response = await self._call(lambda: self._open(place, start, end, etag))
        loop = asyncio.get_running_loop()
        try:
            while chunk := await loop.run_in_executor(self._pool, response.read, _CHUNK_BYTES):
                yield chunk
        except _NETWORK_ERRORS as error:
            raise TransientError(f"S3 broke off in the middle of {key}: {error}") from error
        finally:
            response.close()
            response.release_conn()

    async def upload(self, key: str, chunks: AsyncIterator[bytes]) -> Stored:
        """Write an object of unknown size as it comes; nothing is left behind if `chunks` raises.

        No thread waits for `chunks`, so any number of slow sources stand in nobody's way.
        """
        async with aclosing(_parts(chunks)) as parts:
            first = await anext(parts, b"")
            if len(first) < _PART_BYTES:
                return await self.put(key, first)
            size = 0

            async def send(upload: str, sending: list[asyncio.Task[str]]) -> None:
                nonlocal size
                part = first
                while part:
                    size += len(part)
                    sending.append(asyncio.create_task(self._send(key, upload, len(sending), part)))
                    part = await anext(parts, b"")
                    await asyncio.wait(sending[-1:])
                    sending[-1].result()

            etag = await self._in_parts(key, send)
        return Stored(key, etag or (await self.stat(key)).etag, size)

    async def compose(self, key: str, sources: Sequence[Stored]) -> Stored:
        """Write an object that is others one after the other; memory does not grow with it.

        S3 copies them itself where it can: where all but the last have 5 MiB. Nothing is left
        behind if it fails. Raises NotFoundError when a source is gone.
        """
        sources = [source for source in sources if source.size]
        is_too_small = any(source.size < _LEAST_PART_BYTES for source in sources[:-1])
        if not sources or is_too_small or len(sources) > _MOST_PARTS:
            return await self.upload(key, self._joined(sources))

        async def copy_all(upload: str, copying: list[asyncio.Task[str]]) -> None:
            for number, source in enumerate(sources, start=1):
                if len(copying) >= _COPIES_AT_ONCE:
                    await asyncio.wait(copying[-_COPIES_AT_ONCE:][:1])
                    copying[-_COPIES_AT_ONCE].result()
                copying.append(asyncio.create_task(self._copy(key, upload, number, source)))
            await asyncio.wait(copying)

        etag = await self._in_parts(key, copy_all)
        size = sum(source.size for source in sources)
        return Stored(key, etag or (await self.stat(key)).etag, size)

    async def set_policy(self, policy: Mapping[str, object]) -> None:
        """Replace the bucket's access policy."""
        await self._call(lambda: self._client.set_bucket_policy(self.bucket, json.dumps(policy)))

    async def tag(self, key: str, tags: Mapping[str, str]) -> None:
        """Give an object these tags and no others; access policies can ask for them.

        Raises NotFoundError when there is no object.
        """
        of_object = Tags.new_object_tags()
        of_object.update(tags)
        await self._call(lambda: self._client.set_object_tags(self.bucket, key, of_object))

    async def require_tags(self) -> None:
        """Raise SetupError if the server does not let us tag objects."""
        probe = f"probes/{secrets.token_hex(8)}"
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
        """What was kept beside an object; empty for none. Raises NotFoundError."""
        found = await self._call(lambda: self._stat(_Place(self.bucket, key, None)))
        return (found.metadata or {}).get(_LABEL, "")

    async def stat(
        self, key: str, *, bucket: str | None = None, version_id: str | None = None
    ) -> Stored:
        """Size and ETag. Raises NotFoundError."""
        place = _Place(bucket or self.bucket, key, version_id or None)
        found = await self._call(lambda: self._stat(place))
        return Stored(key, found.etag or "", found.size or 0)

    async def keys(self, prefix: str) -> list[str]:
        """All keys that begin with `prefix`."""
        return await self._call(
            lambda: [
                item.object_name or ""
                for item in self._client.list_objects(self.bucket, prefix, recursive=True)
            ]
        )

    async def pages(self, prefix: str) -> AsyncGenerator[list[Listed], None]:
        """The objects whose keys begin with `prefix`, in order, a thousand at a time."""
        after: str | None = None
        while True:
            page = await self._call(partial(self._page, prefix, after))
            if page:
                yield page
            if len(page) < _LISTED:
                return
            after = page[-1].key

    async def folders(self, prefix: str) -> list[str]:
        """What follows `prefix` up to the next slash, each once."""
        return await self._call(
            lambda: [
                (item.object_name or "").removeprefix(prefix).rstrip("/")
                for item in self._client.list_objects(self.bucket, prefix)
                if item.is_dir
            ]
        )

    async def keys_older_than(self, seconds: float, prefix: str) -> list[str]:
        """All keys that begin with `prefix` and were written longer ago."""
        before = datetime.now(UTC) - timedelta(seconds=seconds)
        return await self._call(
            lambda: [
                item.object_name or ""
                for item in self._client.list_objects(self.bucket, prefix, recursive=True)
                if item.last_modified and item.last_modified < before
            ]
        )

    async def abort_older_than(self, seconds: float) -> int:
        """Drop what uploads have sent that were begun longer ago and never ended. Returns how many.

        MinIO shows nobody such uploads, and drops them itself after a day.
        """
        before = datetime.now(UTC) - timedelta(seconds=seconds)
        abandoned = await self._call(lambda: self._begun_before(before))
        for key, upload in abandoned:
            # Ceph 16 encodes the keys that it lists and does not say so.
            for name in {key, unquote(key)}:
                await self._call(partial(self._abort, name, upload))
        return len(abandoned)

    async def remove(self, keys: Iterable[str]) -> None:
        """Delete objects; one that is gone already is no error."""
        doomed = [DeleteObject(key) for key in keys]
        failed = await self._call(lambda: list(self._client.remove_objects(self.bucket, doomed)))
        if failed:
            raise TransientError(f"S3 did not delete {len(failed)} objects: {failed[0].code}")

    def signed_url(self, key: str, *, at: int, seconds: int) -> str:
        """A URL that reads the object without a key, from `at` (Unix seconds) for `seconds`.

        The same arguments give the same URL. S3 takes a week at most.
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
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._connections.clear()

    async def _joined(self, sources: Iterable[Stored]) -> AsyncGenerator[bytes, None]:
        for source in sources:
            async with aclosing(self.stream(source.key, etag=source.etag)) as chunks:
                async for chunk in chunks:
                    yield chunk

    async def _in_parts(
        self,
        key: str,
        send: Callable[[str, list[asyncio.Task[str]]], Coroutine[None, None, None]],
    ) -> str:
        """A multipart upload. `send` gets its id and a list for its parts, each a task for an ETag.

        Returns the object's ETag, empty where the server does not tell.
        """
        upload = await self._call(lambda: self._begin(key))
        sending: list[asyncio.Task[str]] = []
        try:
            await send(upload, sending)
            etags = [task.result() for task in sending]
            # Once only: when its answer is lost, a repeat could not tell what happened.
            return await self._in_thread(lambda: self._complete(key, upload, etags))
        except BaseException:
            # Also when cancelled. A part still on its way would outlive the abort.
            await asyncio.gather(*sending, return_exceptions=True)
            with suppress(TransientError, StorageRefusedError):
                await self._call(lambda: self._abort(key, upload))
            raise

    async def _call(self, function: Callable[[], T]) -> T:
        # Also what waits for a thread, where all of them wait for a server that hangs.
        async with _patience(self._patience_seconds):
            return await self._try(function)

    async def _try(self, function: Callable[[], T]) -> T:
        async for attempt in stamina.retry_context(
            on=TransientError, attempts=self._attempts, timeout=30, wait_initial=0.1, wait_max=2
        ):
            with attempt:
                return await self._in_thread(function)
        raise AssertionError("unreachable: stamina raises after its last attempt")

    async def _in_thread(self, function: Callable[[], T]) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, _translated, function)

    def _make_bucket(self) -> None:
        if not self._client.bucket_exists(self.bucket):
            try:
                self._client.make_bucket(self.bucket)
            except S3Error as error:
                if error.code in _NO_SUCH_REGION:
                    raise SetupError(
                        f"The S3 server has no region '{self._region}' where bucket "
                        f"'{self.bucket}' could be made. Set BATCHYARD_S3_REGION to one that it "
                        "has, or make the bucket yourself."
                    ) from error
                if error.code not in ("BucketAlreadyOwnedByYou", "BucketAlreadyExists"):
                    raise

    def _page(self, prefix: str, after: str | None) -> list[Listed]:
        found = self._client.list_objects(self.bucket, prefix, recursive=True, start_after=after)
        return [
            Listed(
                item.object_name or "",
                (item.etag or "").strip('"'),
                item.size or 0,
                item.last_modified.timestamp() if item.last_modified else 0.0,
            )
            # The client would go on by itself, and begin anew where it breaks off.
            for item in islice(found, _LISTED)
        ]

    def _put(self, key: str, body: bytes) -> Stored:
        # In one piece: of an upload in parts, Ceph does not tell the ETag.
        written = self._client.put_object(
            self.bucket, key, io.BytesIO(body), len(body), part_size=max(len(body), _PART_BYTES)
        )
        return Stored(key, written.etag or "", len(body))

    def _create(self, key: str, body: bytes, label: str = "") -> str | None:
        """The new object's ETag; None where there is one already."""
        headers: dict[str, str | list[str] | tuple[str]] = {
            "If-None-Match": "*",
            "Content-Type": "application/octet-stream",
        }
        if label:
            headers[_LABEL] = label
        try:
            # put_object of the client drops headers that it does not know.
            answer = self._client._execute(  # noqa: SLF001  # the only way to send If-None-Match
                "PUT",
                bucket_name=self.bucket,
                object_name=key,
                body=body,
                headers=headers,
            )
        except S3Error as error:
            if error.code == "PreconditionFailed":
                return None
            if error.code == "ConditionalRequestConflict":
                raise TransientError(f"S3: a race for {key}, to be run again") from error
            raise
        return str(answer.headers.get("etag", "")).strip('"')

    def _stat(self, place: "_Place") -> Object:
        with _errors_of(place):
            return self._client.stat_object(place.bucket, place.key, version_id=place.version_id)

    def _get(self, place: "_Place", start: int, end: int | None, etag: str | None) -> bytes:
        response = self._open(place, start, end, etag)
        try:
            return response.read()
        finally:
            response.close()
            response.release_conn()

    def _open(
        self, place: "_Place", start: int, end: int | None, etag: str | None
    ) -> urllib3.BaseHTTPResponse:
        with _errors_of(place):
            return self._client.get_object(
                place.bucket,
                place.key,
                offset=start,
                length=0 if end is None else end - start,
                request_headers={"If-Match": etag} if etag else None,
                version_id=place.version_id,
            )

    async def _send(self, key: str, upload: str, index: int, part: bytes) -> str:
        return await self._call(lambda: self._put_part(key, upload, index + 1, part))

    async def _copy(self, key: str, upload: str, number: int, source: Stored) -> str:
        return await self._call(lambda: self._copy_part(key, upload, number, source))

    # The client's own multipart upload reads its source in a thread; its single steps are private.
    def _begin(self, key: str) -> str:
        return self._client._create_multipart_upload(self.bucket, key, {})  # noqa: SLF001

    def _put_part(self, key: str, upload: str, number: int, part: bytes) -> str:
        return self._client._upload_part(self.bucket, key, part, None, upload, number)  # noqa: SLF001

    def _copy_part(self, key: str, upload: str, number: int, source: Stored) -> str:
        headers: dict[str, str | list[str] | tuple[str]] = {
            "x-amz-copy-source": quote(f"/{self.bucket}/{source.key}"),
            # Ceph 16 ignores it.
            "x-amz-copy-source-if-match": source.etag,
        }
        try:
            return self._client._upload_part_copy(self.bucket, key, upload, number, headers)[0]  # noqa: SLF001
        except ValueError as error:
            # S3 may answer 200 before it knows, and put the error into the body.
            raise TransientError(f"S3 did not copy {source.key}.") from error

    def _begun_before(self, moment: datetime) -> list[tuple[str, str]]:
        found, after = [], None
        while True:
            # By key alone: the client forgets the other marker. What is passed over of one key is
            # found the next time.
            page = self._client._list_multipart_uploads(self.bucket, key_marker=after)  # noqa: SLF001
            found += [
                (upload.object_name, upload.upload_id or "")
                for upload in page.uploads
                if upload.initiated_time and upload.initiated_time < moment
            ]
            after = page.next_key_marker
            if not page.is_truncated or not after:
                return found

    def _complete(self, key: str, upload: str, etags: list[str]) -> str:
        """The object's ETag; empty where the server keeps it to itself, as Ceph 16 does."""
        parts = [Part(number, etag) for number, etag in enumerate(etags, start=1)]
        done = self._client._complete_multipart_upload(self.bucket, key, upload, parts)  # noqa: SLF001
        if done.object_name is None:
            # S3 may answer 200 before it knows, and put the error into the body.
            raise TransientError(f"S3 did not put {key} together.")
        return done.etag or ""

    def _abort(self, key: str, upload: str) -> None:
        try:
            self._client._abort_multipart_upload(self.bucket, key, upload)  # noqa: SLF001
        except S3Error as error:
            if error.code != "NoSuchUpload":
                raise


class _Place(NamedTuple):
    """Where an object lies; the newest version if none is named."""

    bucket: str
    key: str
    version_id: str | None


@asynccontextmanager
async def _patience(seconds: float | None) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError as error:
        raise TransientError("S3 does not answer.") from error


@contextmanager
def _errors_of(place: _Place) -> Iterator[None]:
    """What is said of an object that somebody else may have named: its name, version and rights."""
    try:
        yield
    except ValueError as error:
        # The client's own word, before it asks S3.
        raise NotFoundError(
            f"No object can be called {place.key!r} in {place.bucket!r}."
        ) from error
    except S3Error as error:
        code, status = error.code or "", error.response.status
        if code == "AccessDenied":
            raise ForbiddenError(f"S3 does not let us read {place.key}.") from error
        # A version id that the server cannot even parse is one that does not exist.
        if place.version_id and code in ("InvalidArgument", "NoSuchVersion", "MethodNotAllowed"):
            raise NotFoundError(
                f"S3 has no version '{place.version_id}' of object {place.key}."
            ) from error
        if status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            raise ChangedError(f"The object {place.key} is shorter than it was.") from error
        if status < _SERVER_ERROR and code not in {*_ABSENT, *_BUSY, *_LOGIN_REFUSED, _CHANGED}:
            raise ForbiddenError(f"S3 refuses to read {place.key}: {code or status}.") from error
        raise


def _translated(function: Callable[[], T]) -> T:
    try:
        return function()
    except S3Error as error:
        raise _ours(error) from error
    except ServerError as error:
        raise TransientError(f"S3 answers with status {error.status_code}.") from error
    except InvalidResponseError as error:
        raise TransientError(f"Something other than S3 answers: {error}") from error
    except _NETWORK_ERRORS as error:
        raise TransientError(f"S3 cannot be reached: {error}") from error


def _ours(error: S3Error) -> BatchyardError:
    """The error of ours that an error of S3 is."""
    code, status = error.code, error.response.status
    if code in _ABSENT:
        return NotFoundError(f"S3 has no object {error.object_name}.")
    if code == _CHANGED:
        return ChangedError(f"The object {error.object_name} was changed.")
    if code in _LOGIN_REFUSED:
        return LoginRefusedError(f"S3 does not take our login: {code}.")
    if code in _BUSY or status >= _SERVER_ERROR:
        return TransientError(f"S3: {code or status}")
    return StorageRefusedError(code or str(status))


async def _parts(chunks: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    """The same bytes in parts of at least `_PART_BYTES`; only the last may be shorter."""
    gathered = bytearray()
    async for chunk in chunks:
        gathered += chunk
        if len(gathered) >= _PART_BYTES:
            yield bytes(gathered)
            gathered.clear()
    if gathered:
        yield bytes(gathered)
