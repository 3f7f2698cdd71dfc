"""`/metrics` of the gateway. It exists only if a token is set, and only for its bearer."""

import time
from typing import Annotated

from fastapi import APIRouter, Header, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shared.errors import AuthenticationError
from shared.monitoring.metrics import CONTENT_TYPE, Calls, may_scrape


def router(calls: Calls, token: str) -> APIRouter:
    """The route. It is for the operator and not part of the API."""
    made = APIRouter()

    @made.get("/metrics", include_in_schema=False)
    async def metrics(authorization: Annotated[str | None, Header()] = None) -> Response:
        if not may_scrape(authorization, token):
            raise AuthenticationError(
                "Send the token of BATCHYARD_METRICS_TOKEN as the bearer token."
            )
        return Response(calls.exposition(), media_type=CONTENT_TYPE)

    return made


class Counting:
    """ASGI middleware that counts each call, by the template of its route."""

    def __init__(self, app: ASGIApp, calls: Calls) -> None:
        self._app = app
        self._calls = calls

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, status = time.perf_counter(), 500

        async def send_counted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, send_counted)
        finally:
            route = getattr(scope.get("route"), "path", "")
            # Where no route is found, the method may be any text.
            method = scope["method"] if route else ""
            self._calls.count(method, route, status, time.perf_counter() - started)
