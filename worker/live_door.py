"""The door of a replica: a small HTTP server in its process, where gateways hand on live calls.

Nothing but the gateway, the network and uvicorn is between a client and vLLM's app: no process of
Ray's, which would take each piece of a stream apart and pack it again.
"""

import asyncio
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import structlog
import uvicorn

from shared.doors import ADAPTERS_PATH, SALT_HEADER, TENANT_HEADER, Door
from shared.errors import SetupError
from shared.openai.endpoints import ENDPOINTS
from worker.engine_results import SUCCESS, refusal
from worker.live_calls import LiveCall, LiveCalls, Receive, Send, send_result

log = structlog.get_logger()

#: Gateways close an idle connection sooner.
_IDLE_SECONDS = 75
#: How long calls may go on once the door closes: a replica that is drained has waited for them.
_GRACE_SECONDS = 1


class LiveDoor:
    """Belongs to the event loop of the replica."""

    def __init__(self, calls: LiveCalls) -> None:
        self._calls = calls
        self._bearer = secrets.token_urlsafe(32)
        self._server: _Server | None = None
        self._serving: asyncio.Task[None] | None = None

    async def open(self, replica: str, host: str, ports: tuple[int, int]) -> Door:
        """Listen on the first free port of the range, which includes its end. Raises SetupError."""
        listening = _listening_socket(host, ports)
        self._server = _Server(
            uvicorn.Config(
                self._answer,
                log_config=None,
                access_log=False,
                server_header=False,
                date_header=False,
                interface="asgi3",
                lifespan="off",
                proxy_headers=False,
                ws="none",
                timeout_keep_alive=_IDLE_SECONDS,
                timeout_graceful_shutdown=_GRACE_SECONDS,
            )
        )
        self._serving = asyncio.create_task(self._server.serve([listening]))
        port: int = listening.getsockname()[1]
        log.info("live_door.open", host=host, port=port)
        return Door(replica, host, port, self._bearer)

    async def close(self) -> None:
        """Take no more calls, and let those that run end, for a while."""
        if self._server is not None and self._serving is not None:
            self._server.should_exit = True
            await asyncio.wait([self._serving])

    async def _answer(self, scope: Any, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        given = headers.get(b"authorization", b"")
        if not secrets.compare_digest(given, b"Bearer " + self._bearer.encode()):
            await send_result(send, refusal("This door is for gateways.", status=401))
            return
        path = scope["path"]
        if scope["method"] == "PUT" and path.startswith(ADAPTERS_PATH):
            name = path.removeprefix(ADAPTERS_PATH)
            tenant = _text(headers, TENANT_HEADER)
            refused = await self._calls.bring(tenant, name, await _body(receive))
            await send_result(send, refused or (SUCCESS, b"{}"))
            return
        if scope["method"] != "POST" or path not in ENDPOINTS:
            await send_result(send, refusal("There is no such endpoint.", status=404))
            return
        call = LiveCall(
            path,
            await _body(receive),
            _text(headers, TENANT_HEADER),
            _text(headers, SALT_HEADER),
            _text(headers, b"x-request-id"),
        )
        await self._calls.answer(call, receive, send)


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to Ray."""
        yield


def _listening_socket(host: str, ports: tuple[int, int]) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for port in range(ports[0], ports[1] + 1):
        listening = socket.socket(family)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with suppress(OSError):
            listening.bind((host, port))
            # Until one of them listens, two processes may be bound to one port.
            listening.listen()
            return listening
        listening.close()
    raise SetupError(f"No port from {ports[0]} to {ports[1]} is free for live calls on {host}.")


async def _body(receive: Receive) -> bytes:
    body, is_more = bytearray(), True
    while is_more:
        message = await receive()
        body += message.get("body", b"")
        is_more = message.get("more_body", False)
    return bytes(body)


def _text(headers: dict[bytes, bytes], name: bytes) -> str:
    return headers.get(name, b"").decode("latin-1")
