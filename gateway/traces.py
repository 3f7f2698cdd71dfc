"""Spans of HTTP calls, and the trace that a new batch belongs to."""

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shared.tracing import spans
from shared.tracing.trace_context import usable

#: Probes and scrapes, which are many and say nothing.
_UNTRACED = frozenset({"/healthz", "/readyz", "/metrics"})
_FIRST_SERVER_ERROR = 500


class Traced:
    """ASGI middleware: a span for each call, below the caller's. The log names its trace."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in _UNTRACED:
            await self._app(scope, receive, send)
            return
        parent, _ = _callers(Request(scope))
        if not spans.is_on():
            if not parent:
                await self._app(scope, receive, send)
                return
            with spans.named(parent):
                await self._app(scope, receive, send)
            return
        status = _FIRST_SERVER_ERROR

        async def send_noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        with spans.entrance("HTTP", "server", parent=parent) as span:
            try:
                await self._app(scope, receive, send_noted)
            finally:
                # A path may contain anything, but its route's template does not.
                route = getattr(scope.get("route"), "path", "")
                method = scope["method"] if route else "HTTP"
                span.rename(f"{method} {route}".strip())
                span.set(
                    {
                        "http.request.method": method if route else "_OTHER",
                        "http.route": route,
                        "http.response.status_code": status,
                        "url.scheme": scope["scheme"],
                    }
                )
                if status >= _FIRST_SERVER_ERROR:
                    span.fail(str(status))


def trace_of(request: Request) -> dict[str, str]:
    """The fields of a new manifest that name its trace: that of this call, or the caller's."""
    parent, state = _callers(request)
    return {"traceparent": spans.current() or parent, "tracestate": state}


def _callers(request: Request) -> tuple[str, str]:
    return usable(request.headers.get("traceparent"), request.headers.get("tracestate"))
