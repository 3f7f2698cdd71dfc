"""Downloads by clients that read slowly, and by those that want many at once."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from urllib.parse import urlsplit

from fastapi import FastAPI
from fastapi.responses import StreamingResponse

from gateway.server import Server
from gateway.settings import GatewaySettings
from gateway.slow_readers import reading_at_least
from shared.state import State
from shared.tenants import TenantSettings
from tests.batches import in_progress
from tests.eventually import eventually, wait_until
from tests.integration.gateway.conftest import Caller

_MIB = 1024 * 1024
_LARGE = 16 * _MIB
_RATE = 8 * _MIB


@contextlib.contextmanager
def _served(settings: GatewaySettings, app: FastAPI) -> Iterator[tuple[Server, int]]:
    """The app as the gateway is served, with less patience; and its port."""
    server = Server.of(
        app,
        settings,
        lifespan="off",
        http=reading_at_least(_RATE, least_seconds=0.2),
        timeout_keep_alive=0.5,
    )
    with socket.create_server(("127.0.0.1", 0)) as listening:
        # Else the kernel takes megabytes for a client that reads nothing.
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        thread = threading.Thread(target=server.run, args=[[listening]])
        thread.start()
        try:
            wait_until(lambda: server.started)
            yield server, listening.getsockname()[1]
        finally:
            server.force_exit = server.should_exit = True
            thread.join()


@contextlib.contextmanager
def _asking(port: int, path: str, *, key: str = "") -> Iterator[socket.socket]:
    """A connection on which the path was asked for, and of which nothing is read yet."""
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        connection.connect(("127.0.0.1", port))
        head = f"GET {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\n\r\n"
        connection.sendall(head.encode())
        yield connection


def test_who_reads_nothing_is_hung_up_on_however_much_is_left(settings: GatewaySettings) -> None:
    app, asked = FastAPI(), set()
    sizes = range(0, _MIB, 32 * 1024)

    @app.get("/{size}")
    async def answer(size: int) -> StreamingResponse:
        asked.add(size)
        return StreamingResponse(iter([bytes(size)]))

    with _served(settings, app) as (server, port), contextlib.ExitStack() as clients:
        # The kernel takes some of each answer. Of one of them, so little is left that the server
        # believes it written.
        for size in sizes:
            clients.enter_context(_asking(port, f"/{size}"))
        wait_until(lambda: asked == set(sizes))
        wait_until(lambda: not server.server_state.connections)


def test_who_reads_slowly_but_fast_enough_gets_everything(settings: GatewaySettings) -> None:
    app, sent = FastAPI(), bytes(2 * _MIB)

    @app.get("/")
    async def answer() -> StreamingResponse:
        # The time that the server itself takes does not count.
        return StreamingResponse(_slowly(sent), headers={"content-length": str(len(sent))})

    with _served(settings, app) as (_, port), _asking(port, "/") as connection:
        received = 0
        while chunk := connection.recv(65_536):
            received += len(chunk)

    assert received > len(sent)


async def test_downloads_are_refused_above_their_limit_and_counted_until_they_end(
    acme: Caller, globex: Caller, gateway_state: State
) -> None:
    await gateway_state.tenants.put(acme.tenant, TenantSettings(downloads=1))
    file = await acme.openai.files.create(file=bytes(_LARGE), purpose="user_data")
    other = await globex.openai.files.create(file=b"{}", purpose="user_data")
    path = f"/v1/files/{file.id}/content"
    batch_id = await in_progress(gateway_state, tenant=acme.tenant, slices=1)

    async def is_limited() -> bool:
        limits = (await acme.http.get("/v1/limits")).json()
        return bool(limits["downloads"]["limit"] == 1)

    await eventually(is_limited)
    with _asking(urlsplit(str(acme.http.base_url)).port or 0, path, key=acme.key):

        async def is_counted() -> bool:
            limits = (await acme.http.get("/v1/limits")).json()
            return bool(limits["downloads"] == {"limit": 1, "used": 1})

        await eventually(is_counted)
        refused = await acme.http.get(path)
        others = await globex.http.get(f"/v1/files/{other.id}/content")
        results = await acme.http.get(f"/v1/batches/{batch_id}/results")

    error = refused.json()["error"]
    assert (refused.status_code, error["code"]) == (429, "download_limit_exceeded")
    assert "Limit: 1 downloads at once. Used: 1. Please try again once" in error["message"]
    assert others.content == b"{}"
    # There is nothing to download yet.
    assert results.status_code == 200

    async def has_room() -> bool:
        return (await acme.http.get(path)).status_code == 200

    await eventually(has_room)


async def _slowly(sent: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(sent), 256 * 1024):
        await asyncio.sleep(0.1)
        yield sent[start : start + 256 * 1024]
