"""Sends one webhook over HTTP: to a checked address, in limited time, and follows no redirect."""

import asyncio
import ssl
import time
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from typing import NamedTuple

import httpcore

from dispatcher.schedule import retry_after_seconds
from shared.outbound import Guard, RefusedAddressError, read_url
from shared.outbound_network import guarded_pool

#: Bytes of an answer's body that are read and dropped before the connection is closed.
_BODY_BYTES = 64 * 1024
_BODY_SECONDS = 2.0
_USER_AGENT = f"Batchyard/{version('batchyard')}"
_ERROR_CHARACTERS = 200


class Answer(NamedTuple):
    """The result of one attempt: the receiver's status code, or the reason why there is none."""

    status: int | None
    error: str | None = None
    retry_after: float = 0.0
    is_timeout: bool = False


class Sender:
    """Posts bodies to tenants' URLs. A redirect is an answer like any other."""

    def __init__(
        self, guard: Guard, *, timeout_seconds: float, tls: ssl.SSLContext | None = None
    ) -> None:
        self._timeout = timeout_seconds
        # Connections are not reused: if the receiver had closed one, an attempt would be lost.
        self._pool = guarded_pool(guard, tls=tls)
        # httpcore cleans up after its own timeouts, but not if ours ends a TLS handshake.
        self._limits = {"connect": timeout_seconds / 3}

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """Send the body once. Failures are part of the answer."""
        answer: Answer | None = None
        try:
            target = read_url(url)
            all_headers = {
                "host": target.authority,
                "content-type": "application/json",
                "content-length": str(len(body)),
                "user-agent": _USER_AGENT,
                "connection": "close",
                **headers,
            }
            async with (
                asyncio.timeout(self._timeout) as limit,
                self._pool.stream(
                    "POST",
                    httpcore.URL(
                        scheme=target.scheme,
                        host=target.host,
                        port=target.port,
                        target=target.path,
                    ),
                    headers=list(all_headers.items()),
                    content=body,
                    extensions={"timeout": self._limits},
                ) as response,
            ):
                wait = retry_after_seconds(_header(response.headers, b"retry-after"), time.time())
                answer = Answer(response.status, None, wait)
                # The status counts, even if the body breaks off.
                limit.reschedule(asyncio.get_running_loop().time() + _BODY_SECONDS)
                await _throw_away(response)
        except (TimeoutError, httpcore.TimeoutException):
            reason = f"no answer within {self._timeout:g} seconds"
            return answer or Answer(None, reason, is_timeout=True)
        except RefusedAddressError as error:
            return Answer(None, str(error))
        except (httpcore.NetworkError, httpcore.ProtocolError, OSError, ValueError) as error:
            reason = f"{type(error).__name__}: {error}"
            return answer or Answer(None, reason[:_ERROR_CHARACTERS])
        return answer

    async def close(self) -> None:
        """Close what is still open."""
        await self._pool.aclose()


async def _throw_away(response: httpcore.Response) -> None:
    read = 0
    async for chunk in response.aiter_stream():
        read += len(chunk)
        if read > _BODY_BYTES:
            return


def _header(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> str | None:
    found = [value for key, value in headers if key.lower() == name]
    return found[0].decode("latin-1") if found else None
