"""Gets media that requests name by URLs: from S3, and over http from checked addresses.

Lane jobs fetch those of rows, and gateways those of live calls.
"""

import asyncio
import ssl
from collections.abc import Callable, Iterable
from weakref import WeakValueDictionary

import httpcore

from shared.errors import BatchyardError, NotFoundError, TransientError
from shared.openai.media import S3_SCHEME, MediaLimits, Medium, bucket_and_key, too_many_bytes
from shared.outbound import Guard, RefusedAddressError, read_url
from shared.outbound_network import guarded_pool
from shared.storage import Storage

#: Media that are fetched for one tenant at once: its slow hosts must not hold up other tenants.
MEDIA_AT_ONCE = 8
_PAUSES = (0.5, 2.0)
_OK = 200
#: Answers after which the same request may succeed.
_TRY_AGAIN = frozenset({408, 429, *range(500, 600)})
#: The same for every host that does not answer, so that nobody can tell a closed port from an
#: address that must not be called.
_UNREACHABLE = "It could not be downloaded: its host does not answer at a public address in time"


class MediaRefusedError(BatchyardError):
    """A medium cannot be had; the message is for the tenant. `place` is its field, if known."""

    def __init__(self, message: str, place: str = "") -> None:
        super().__init__(message)
        self.place = place


class TooLargeError(MediaRefusedError):
    """A medium has more bytes than are left for it."""


class MediaFetcher:
    """Belongs to one event loop. A redirect is an answer like any other, and not followed."""

    def __init__(
        self,
        open_storage: Callable[[], Storage],
        guard: Guard,
        *,
        timeout_seconds: float,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """A download takes at most `timeout_seconds`, with all its attempts."""
        self._open_storage = open_storage
        self._storage: Storage | None = None
        self._timeout = timeout_seconds
        self._pool = guarded_pool(guard, tls=tls)
        self._turns: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    async def fill(self, tenant: str, wanted: Iterable[Medium], limits: MediaLimits) -> int:
        """Put each file into its place of the request, as the engine takes it; the bytes of all.

        The caller has checked that the tenant may have them. Raises MediaRefusedError with the
        place, and TransientError while S3 is away.
        """
        size = 0
        for medium in wanted:
            try:
                file = await self.fetch(tenant, medium.url, max_bytes=limits.bytes - size)
            except TooLargeError as error:
                raise MediaRefusedError(too_many_bytes(limits), medium.place) from error
            except MediaRefusedError as error:
                raise MediaRefusedError(str(error), medium.place) from error
            size += len(file)
            medium.put(file)
        return size

    async def fetch(self, tenant: str, url: str, *, max_bytes: int) -> bytes:
        """The file. The caller has checked that the tenant may have it.

        Raises MediaRefusedError, and TransientError while S3 is away.
        """
        turns = self._turns.setdefault(tenant, asyncio.Semaphore(MEDIA_AT_ONCE))
        async with turns:
            if url.startswith(S3_SCHEME):
                return await self._read(url, max_bytes)
            return await self._download(url, max_bytes)

    async def _read(self, url: str, max_bytes: int) -> bytes:
        if self._storage is None:
            self._storage = self._open_storage()
        bucket, key = bucket_and_key(url)
        try:
            found = await self._storage.stat(key, bucket=bucket)
            if found.size > max_bytes:
                raise TooLargeError("It is too large")
            return await self._storage.get(key, bucket=bucket, etag=found.etag)
        except NotFoundError as error:
            raise MediaRefusedError("S3 has no such object that Batchyard may read") from error
        except TransientError as error:
            # In an outage this raises as well, and the row waits until it ends.
            await self._storage.check_reads()
            raise MediaRefusedError("S3 fails to answer for this object") from error

    async def _download(self, url: str, max_bytes: int) -> bytes:
        try:
            async with asyncio.timeout(self._timeout):
                for pause in (*_PAUSES, None):
                    try:
                        status, body = await self._get(url, max_bytes)
                    except (httpcore.NetworkError, httpcore.ProtocolError, OSError) as error:
                        if pause is None:
                            raise MediaRefusedError(_UNREACHABLE) from error
                    else:
                        if status == _OK:
                            return body
                        if pause is None or status not in _TRY_AGAIN:
                            raise MediaRefusedError(f"Its host answered with the status {status}")
                    await asyncio.sleep(pause)
        except (TimeoutError, httpcore.TimeoutException, RefusedAddressError, ValueError) as error:
            raise MediaRefusedError(_UNREACHABLE) from error
        raise MediaRefusedError(_UNREACHABLE)

    async def _get(self, url: str, max_bytes: int) -> tuple[int, bytes]:
        target = read_url(url)
        async with self._pool.stream(
            "GET",
            httpcore.URL(
                scheme=target.scheme, host=target.host, port=target.port, target=target.path
            ),
            headers=[("host", target.authority), ("accept", "*/*"), ("connection", "close")],
            extensions={"timeout": {"connect": self._timeout / 3}},
        ) as response:
            if response.status != _OK:
                return response.status, b""
            body = bytearray()
            async for chunk in response.aiter_stream():
                body += chunk
                if len(body) > max_bytes:
                    raise TooLargeError("It is too large")
            return response.status, bytes(body)
