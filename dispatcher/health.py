"""The dispatcher's HTTP port: whether it is alive, whether it is ready, and its metrics.

`/metrics` exists only if there is a token, and answers only its bearer. `/readyz` names the service
that does not answer, and says nothing more.
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
from shared.monitoring.fleet_metrics import fleet_exposition
from shared.monitoring.metrics import CONTENT_TYPE, may_scrape
from shared.monitoring.readiness import PATIENCE_SECONDS, readiness
from shared.state import State

T = TypeVar("T")
log = structlog.get_logger()

#: Seconds for an answer of the event loop. If the loop is stuck, only a restart helps.
_PATIENCE_SECONDS = 5.0
_TEXT = "text/plain; charset=utf-8"
_JSON = "application/json"

#: The body of an answer.
Report = Callable[[], Awaitable[bytes]]
Answer = tuple[HTTPStatus, str, bytes]


class NotReadyError(TransientError):
    """A service does not answer. `report` is the body of `/readyz`."""

    def __init__(self, report: bytes) -> None:
        super().__init__("A service does not answer.")
        self.report = report


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the base class's name
        pass


@asynccontextmanager
async def serving(
    host: str,
    port: int,
    *,
    ready: Report,
    metrics: Report,
    token: str | None,
    patience_seconds: float = _PATIENCE_SECONDS,
) -> AsyncIterator[int]:
    """Serve while the block lasts; yields the port. Threads answer, so a stuck loop is noticed."""
    loop = asyncio.get_running_loop()

    def body_of(report: Report) -> bytes:
        future = asyncio.run_coroutine_threadsafe(_awaited(report), loop)
        try:
            return future.result(patience_seconds)
        finally:
            future.cancel()

    def answer(path: str, authorization: str | None) -> Answer:
        match path:
            case "/healthz":
                return HTTPStatus.OK, _TEXT, body_of(_alive)
            case "/readyz":
                return HTTPStatus.OK, _JSON, body_of(ready)
            case "/metrics" if token is not None:
                if not may_scrape(authorization, token):
                    return HTTPStatus.UNAUTHORIZED, _TEXT, b"the token is missing or wrong\n"
                return HTTPStatus.OK, CONTENT_TYPE, body_of(metrics)
            case _:
                return HTTPStatus.NOT_FOUND, _TEXT, b"not found\n"

    def application(environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        try:
            status, kind, body = answer(path, environ.get("HTTP_AUTHORIZATION"))
        except NotReadyError as error:
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


def reports(
    state: State,
    bus: Bus,
    leads: Callable[[], bool],
    *,
    others: Mapping[str, Callable[[], Awaitable[None]]] | None = None,
    patience_seconds: float = PATIENCE_SECONDS,
) -> tuple[Report, Report]:
    """The reports of `/readyz`, which raises NotReadyError, and of `/metrics`.

    `others` are further services that have to answer before the dispatcher is ready.
    """
    others = others or {}
    pings = {"redis": state.ready, "rabbitmq": bus.ping, **others}

    async def ready() -> bytes:
        answers = {name: ping() for name, ping in pings.items()}
        report = await readiness(answers, patience_seconds=patience_seconds)
        body = json.dumps(report).encode()
        if report["status"] != "ok":
            raise NotReadyError(body)
        return body

    async def metrics() -> bytes:
        answers = {name: ping() for name, ping in others.items()}
        counted, dead_letters, report = await asyncio.gather(
            _unless_gone(state.census.take(), patience_seconds),
            _unless_gone(bus.depth(DEAD_QUEUE), patience_seconds),
            readiness(answers, patience_seconds=patience_seconds),
        )
        up = {"redis": counted is not None, "rabbitmq": dead_letters is not None}
        up |= {name: report[name] == "ok" for name in others}
        return fleet_exposition(counted, up=up, dead_letters=dead_letters, leads=leads())

    return ready, metrics


async def _unless_gone(answer: Awaitable[T], patience_seconds: float) -> T | None:
    """The answer; None if the service does not answer in time."""
    try:
        async with asyncio.timeout(patience_seconds):
            return await answer
    except (TransientError, TimeoutError) as error:
        log.warning("health.lacks", reason=repr(error))
        return None


async def _alive() -> bytes:
    return b"ok\n"


async def _awaited(report: Report) -> bytes:
    return await report()
