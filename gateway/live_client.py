"""Hands a live call on to the door of a replica, and brings back the answer as it comes."""

import socket
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, contextmanager
from typing import NamedTuple, cast
from urllib.parse import quote

import httpcore

from shared.doors import ADAPTERS_PATH, SALT_HEADER, TENANT_HEADER, Door
from shared.errors import BatchyardError
from shared.state import FileRecord

_CONNECT_SECONDS = 2.0
#: Shorter than how long a door keeps an idle connection open.
_IDLE_SECONDS = 30.0
#: A machine that is gone answers nothing: the kernel finds out by itself.
_KEEPALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
)
#: What a door answers that is another replica's by now, or whose engine is dead.
_NOBODY = frozenset({401, 503})


class ShutError(BatchyardError):
    """Nobody has taken the call at this door: it may be tried at another one."""


class BrokenAnswerError(BatchyardError):
    """The replica died in the middle of its answer."""


class LiveAdapter(NamedTuple):
    """The adapter of a call: what the call names it, and its file."""

    name: str
    file: FileRecord


class Handed(NamedTuple):
    """A call as a door takes it."""

    path: str
    body: bytes
    tenant: str
    cache_salt: str
    request_id: str
    #: The tenant's own that the call names.
    adapter: LiveAdapter | None = None


class Answer(NamedTuple):
    """A replica's answer. `chunks` raises BrokenAnswerError."""

    status: int
    content_type: str
    chunks: AsyncGenerator[bytes, None]


class LiveClient:
    """The connections to all doors. Belongs to one event loop."""

    def __init__(self) -> None:
        self._pool = httpcore.AsyncConnectionPool(
            max_connections=None,
            max_keepalive_connections=256,
            keepalive_expiry=_IDLE_SECONDS,
            socket_options=_KEEPALIVE,
        )

    @asynccontextmanager
    async def call(self, door: Door, call: Handed) -> AsyncIterator[Answer]:
        """The answer, once its first bytes are there. The call leaves its engine with the context.

        Raises ShutError, and BrokenAnswerError if the replica died with the call in it.
        """
        async with AsyncExitStack() as stack:
            with _in_our_words():
                response = await stack.enter_async_context(
                    self._pool.stream(
                        "POST",
                        _url(door, call.path),
                        headers=[
                            *_door_headers(door, call.tenant),
                            (b"content-type", b"application/json"),
                            (b"content-length", b"%d" % len(call.body)),
                            (b"x-request-id", call.request_id.encode()),
                            (SALT_HEADER, call.cache_salt.encode()),
                        ],
                        content=call.body,
                        extensions={"timeout": {"connect": _CONNECT_SECONDS}},
                    )
                )
                if response.status in _NOBODY:
                    raise ShutError(f"The door answered {response.status}.")
                chunks = cast("AsyncGenerator[bytes, None]", response.aiter_stream())
                source = await stack.enter_async_context(aclosing(chunks))
                first = await anext(source, b"")
            headers = dict(response.headers)
            content_type = headers.get(b"content-type", b"").decode("latin-1")
            yield Answer(response.status, content_type, _with_first(first, source))

    async def bring(
        self, door: Door, tenant: str, adapter: LiveAdapter, chunks: AsyncIterator[bytes]
    ) -> Answer:
        """Bring the file of a tenant's adapter; what the replica says of it.

        Raises ShutError and BrokenAnswerError.
        """
        with _in_our_words():
            response = await self._pool.request(
                "PUT",
                _url(door, ADAPTERS_PATH + quote(adapter.name, safe="")),
                headers=[
                    *_door_headers(door, tenant),
                    (b"content-length", b"%d" % adapter.file.bytes),
                ],
                content=chunks,
                extensions={"timeout": {"connect": _CONNECT_SECONDS}},
            )
        if response.status in _NOBODY:
            raise ShutError(f"The door answered {response.status}.")
        return Answer(response.status, "application/json", _whole(response.content))

    async def close(self) -> None:
        """Close all connections."""
        await self._pool.aclose()


def _door_headers(door: Door, tenant: str) -> list[tuple[bytes, bytes]]:
    return [
        (b"host", door.host.encode()),
        (b"authorization", b"Bearer " + door.token.encode()),
        (TENANT_HEADER, tenant.encode()),
    ]


async def _whole(body: bytes) -> AsyncGenerator[bytes, None]:
    yield body


async def _with_first(
    first: bytes, rest: AsyncGenerator[bytes, None]
) -> AsyncGenerator[bytes, None]:
    if first:
        yield first
    with _in_our_words():
        async for chunk in rest:
            yield chunk


@contextmanager
def _in_our_words() -> Iterator[None]:
    """Raise what ends a connection as an error of ours."""
    try:
        yield
    except (httpcore.ConnectError, httpcore.ConnectTimeout) as cause:
        raise ShutError(type(cause).__name__) from cause
    except (httpcore.NetworkError, httpcore.TimeoutException, httpcore.ProtocolError) as cause:
        raise BrokenAnswerError(type(cause).__name__) from cause


def _url(door: Door, path: str) -> str:
    host = f"[{door.host}]" if ":" in door.host else door.host
    return f"http://{host}:{door.port}{path}"
