"""Around every HTTP call: its id, OpenAI's response headers, and its log line.

Most calls are clients that poll, so the line's level says whether an operator needs to see it.
"""

import logging
import time

import structlog
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shared import ids

log = structlog.get_logger()

_OPENAI_VERSION = "2020-10-01"
_CLIENT_ID_CHARACTERS = 128
_READS = frozenset({"GET", "HEAD", "OPTIONS"})
_FIRST_REFUSAL, _FIRST_SERVER_ERROR, _UNAVAILABLE = 400, 500, 503


class Access:
    """ASGI middleware; plain, because Starlette's base class would buffer between tasks."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        state["request_id"] = ids.new_http_request_id()
        state["started"] = time.perf_counter()
        status = 500

        async def send_marked(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message).update(response_headers(scope))
            await send(message)

        with structlog.contextvars.bound_contextvars(request_id=state["request_id"]):
            try:
                await self._app(scope, receive, send_marked)
            finally:
                log.log(_level(scope["method"], status), "http.answered", **_line(scope, status))


def response_headers(scope: Scope) -> dict[str, str]:
    """What every answer carries."""
    return {
        "x-request-id": scope["state"]["request_id"],
        "openai-processing-ms": str(_milliseconds(scope)),
        "openai-version": _OPENAI_VERSION,
        "x-content-type-options": "nosniff",
        **scope["state"].get("limit_headers", {}),
    }


def _level(method: str, status: int) -> int:
    """Info for what changed something, a warning for a bug, debug for reads and refusals.

    A 503 has its own line, `http.unavailable`, with the reason.
    """
    if status >= _FIRST_SERVER_ERROR and status != _UNAVAILABLE:
        return logging.WARNING
    has_changed = method not in _READS and status < _FIRST_REFUSAL
    return logging.INFO if has_changed else logging.DEBUG


def _line(scope: Scope, status: int) -> dict[str, str | int | None]:
    client_id = dict(scope["headers"]).get(b"x-client-request-id", b"").decode("latin-1")
    return {
        "status": status,
        "method": scope["method"],
        # The route's template: a path may contain ids, and an unknown path may contain anything.
        "route": getattr(scope.get("route"), "path", None),
        "ms": _milliseconds(scope),
        "tenant": scope["state"].get("tenant"),
        **({"client_request_id": client_id[:_CLIENT_ID_CHARACTERS]} if client_id else {}),
    }


def _milliseconds(scope: Scope) -> int:
    started: float = scope["state"]["started"]
    return round((time.perf_counter() - started) * 1000)
