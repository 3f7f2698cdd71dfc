"""The dispatcher's own small HTTP port: whether it lives, whether it is ready, and its numbers.

`/metrics` is there only with a token, and for its bearer only; `/readyz` tells which service is
amiss, and nothing more.
"""

import asyncio
import concurrent.futures
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any, TypeVar
from wsgiref.simple_server import WSGIRequestHandler, make_server
from wsgiref.types import StartResponse, WSGIEnvironment

import structlog
from prometheus_client.exposition import ThreadingWSGIServer

from shared.bus.connection import Bus
from shared.bus.topology import DEAD_QUEUE
from shared.errors import TransientError
from shared.monitoring.metrics import CONTENT_TYPE, fleet_exposition, may_scrape
from shared.monitoring.readiness import PATIENCE_SECONDS, readiness
from shared.state import State

T = TypeVar("T")
log = structlog.get_logger()

#: Seconds for an answer of the event loop: where it stands still, only a restart helps.
_PATIENCE = 5.0
_TEXT = "text/plain; charset=utf-8"
_JSON = "application/json"

LanePosition = Callable[[], Awaitable[bytes]]
Answer = tuple[HTTPStatus, str, bytes]


class UnwellError(TransientError):
    """It is not ready; `report` is what `/readyz` says then."""

    def __init__(self, report: bytes) -> None:
        super().__init__("A service is amiss.")
        self.report = report


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the base class's name
        pass


@asynccontextmanager
async def serving(
    host: str,
    port: int,
    *,
    ready: LanePosition,
    metrics: LanePosition,
    token: str | None,
    patience_seconds: float = _PATIENCE,
) -> AsyncIterator[int]:
    """Answer while this is open; gives the port. Threads answer, so that a stuck loop is seen."""
    loop = asyncio.get_running_loop()

    def asked(question: LanePosition) -> bytes:
        future = asyncio.run_coroutine_threadsafe(_awaited(question), loop)
        try:
            return future.result(patience_seconds)
        finally:
            future.cancel()

    def answer(path: str, authorization: str | None) -> Answer:
        match path:
            case "/healthz":
                return HTTPStatus.OK, _TEXT, asked(_alive)
            case "/readyz":
                return HTTPStatus.OK, _JSON, asked(ready)
            case "/metrics" if token is not None:
                if not may_scrape(authorization, token):
                    return HTTPStatus.UNAUTHORIZED, _TEXT, b"the token is missing or wrong\n"
                return HTTPStatus.OK, CONTENT_TYPE, asked(metrics)
            case _:
                return HTTPStatus.NOT_FOUND, _TEXT, b"not found\n"

    def application(environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        try:
            status, kind, body = answer(path, environ.get("HTTP_AUTHORIZATION"))
        except UnwellError as error:
            status, kind, body = HTTPStatus.SERVICE_UNAVAILABLE, _JSON, error.report
        except (TransientError, TimeoutError, concurrent.futures.CancelledError) as error:
            log.warning("health.refused", path=path, reason=repr(error))
            status, kind, body = HTTPStatus.SERVICE_UNAVAILABLE, _TEXT, b"not well\n"
        start(
            f"{status.value} {status.phrase}",
            [("Content-Type", kind), ("Content-Length", str(len(body)))],
        )
        return [body]

    server = make_server(host, port, application, ThreadingWSGIServer, _Quiet)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), name="health", daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        await asyncio.to_thread(server.shutdown)
        server.server_close()


def look(
    state: State,
    bus: Bus,
    leads: Callable[[], bool],
    *,
    others: Mapping[str, Callable[[], Awaitable[None]]] | None = None,
    patience_seconds: float = PATIENCE_SECONDS,
) -> tuple[LanePosition, LanePosition]:
    """What `/readyz` and `/metrics` ask: the first raises UnwellError, the second tells it.

    `others` are what else has to answer for it to be ready.
    """
    others = others or {}
    pings = {"redis": state.ready, "rabbitmq": bus.ping, **others}

    async def ready() -> bytes:
        asked = {name: ping() for name, ping in pings.items()}
        report = await readiness(asked, patience_seconds=patience_seconds)
        body = json.dumps(report).encode()
        if report["status"] != "ok":
            raise UnwellError(body)
        return body

    async def metrics() -> bytes:
        asked = {name: ping() for name, ping in others.items()}
        counted, dead_letters, report = await asyncio.gather(
            _unless_gone(state.census.take(), patience_seconds),
            _unless_gone(bus.depth(DEAD_QUEUE), patience_seconds),
            readiness(asked, patience_seconds=patience_seconds),
        )
        up = {"redis": counted is not None, "rabbitmq": dead_letters is not None}
        up |= {name: report[name] == "ok" for name in others}
        return fleet_exposition(counted, up=up, dead_letters=dead_letters, leads=leads())

    return ready, metrics


async def _unless_gone(asked: Awaitable[T], patience_seconds: float) -> T | None:
    try:
        async with asyncio.timeout(patience_seconds):
            return await asked
    except (TransientError, TimeoutError) as error:
        log.warning("health.lacks", reason=repr(error))
        return None


async def _alive() -> bytes:
    return b"ok\n"


async def _awaited(asked: LanePosition) -> bytes:
    return await asked()
