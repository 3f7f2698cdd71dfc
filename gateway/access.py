"""Around every HTTP call: its id, OpenAI's response headers, its log line, and that of the trail.

Most calls are clients that poll, so the line's level says whether an operator needs to see it.
"""

import logging
import random
import time
from collections.abc import Iterable, Mapping

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.acts import ACTS, object_of
from shared import ids
from shared.monitoring.trail import Act, Result, Trail
from shared.openai.endpoints import ENDPOINTS

log = structlog.get_logger()

_OPENAI_VERSION = "2020-10-01"
_CLIENT_ID_CHARACTERS = 128
_READS = frozenset({"GET", "HEAD", "OPTIONS"})
_FIRST_REFUSAL, _FIRST_SERVER_ERROR, _UNAVAILABLE = 400, 500, 503


class Access:
    """ASGI middleware; plain, because Starlette's base class would buffer between tasks."""

    def __init__(self, app: ASGIApp, trail: Trail, *, sample: float = 0.0) -> None:
        """`sample` is the part of reads and refusals that are logged at the level info."""
        self._app = app
        self._trail = trail
        self._sample = sample

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        state["request_id"] = ids.new_http_request_id()
        state["started"] = time.perf_counter()
        status, has_begun = 500, False

        async def send_marked(message: Message) -> None:
            nonlocal status, has_begun
            if message["type"] == "http.response.start":
                status, has_begun = message["status"], True
                # First, so that nobody hears of an act that the trail lacks.
                self._tell(scope, status)
                message["headers"] = _marked(message["headers"], response_headers(scope))
            await send(message)

        with structlog.contextvars.bound_contextvars(request_id=state["request_id"]):
            try:
                await self._app(scope, receive, send_marked)
            finally:
                if not has_begun:
                    # What a bug has left behind is nobody's guess.
                    self._tell(scope, status)
                level = self._level(scope["method"], _route(scope), status)
                # Most calls have no line, so it is not made for them.
                if log.is_enabled_for(level):
                    log.log(level, "http.answered", **_line(scope, status))

    def _level(self, method: str, route: str | None, status: int) -> int:
        level = _level(method, route, status)
        is_chosen = level == logging.DEBUG and random.random() < self._sample
        return logging.INFO if is_chosen else level

    def _tell(self, scope: Scope, status: int) -> None:
        """Write the call to the trail if it was let in and is an act."""
        state = scope["state"]
        act = ACTS.get((scope["method"], _route(scope) or ""))
        if act is None or "admitted" not in state or "dry_run" in state:
            return
        named, made = object_of(scope.get("path_params", {})), state.get("made")
        self._trail.write(
            Act(
                act,
                "http",
                _result(status),
                tenant=state["tenant"],
                key_id=state["key_id"],
                object=named or made,
                made=made if named else None,
                why=None if status < _FIRST_REFUSAL else str(status),
                request_id=state["request_id"],
            )
        )


def response_headers(scope: Scope) -> dict[str, str]:
    """What every answer carries."""
    return {
        "x-request-id": scope["state"]["request_id"],
        "openai-processing-ms": str(_milliseconds(scope)),
        "openai-version": _OPENAI_VERSION,
        "x-content-type-options": "nosniff",
        **scope["state"].get("limit_headers", {}),
    }


def _marked(
    headers: Iterable[tuple[bytes, bytes]], marks: Mapping[str, str]
) -> list[tuple[bytes, bytes]]:
    """The headers of an answer with these marks, which take the place of others."""
    made = {name.encode("latin-1"): value.encode("latin-1") for name, value in marks.items()}
    return [*(one for one in headers if one[0] not in made), *made.items()]


def _level(method: str, route: str | None, status: int) -> int:
    """Info for what changed something, a warning for a bug, debug for reads and refusals.

    Live calls change nothing that is kept. A 503 has a line of its own, `http.unavailable`.
    """
    if status >= _FIRST_SERVER_ERROR and status != _UNAVAILABLE:
        return logging.WARNING
    has_changed = method not in _READS and route not in ENDPOINTS and status < _FIRST_REFUSAL
    return logging.INFO if has_changed else logging.DEBUG


def _result(status: int) -> Result:
    if status < _FIRST_REFUSAL:
        return "done"
    return "refused" if status < _FIRST_SERVER_ERROR else "failed"


def _route(scope: Scope) -> str | None:
    """The route's template: a path may contain ids, and an unknown path may contain anything."""
    return getattr(scope.get("route"), "path", None)


def _line(scope: Scope, status: int) -> dict[str, str | int | None]:
    state = scope["state"]
    client_id = dict(scope["headers"]).get(b"x-client-request-id", b"").decode("latin-1")
    return {
        "status": status,
        "method": scope["method"],
        "route": _route(scope),
        "ms": _milliseconds(scope),
        "tenant": state.get("tenant"),
        "key_id": state.get("key_id"),
        "object_id": object_of(scope.get("path_params", {})) or state.get("made"),
        **({"client_request_id": client_id[:_CLIENT_ID_CHARACTERS]} if client_id else {}),
    }


def _milliseconds(scope: Scope) -> int:
    started: float = scope["state"]["started"]
    return round((time.perf_counter() - started) * 1000)
