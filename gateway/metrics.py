"""`/metrics` of the gateway: there only with a token, and for its bearer only."""

import time
from typing import Annotated

from fastapi import APIRouter, Header, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shared.errors import AuthenticationError
from shared.monitoring.metrics import CONTENT_TYPE, Calls, may_scrape


def router(calls: Calls, token: str) -> APIRouter:
    """The one route; it is the operator's and no part of the API."""
    made = APIRouter()

    @made.get("/metrics", include_in_schema=False)
    async def metrics(authorization: Annotated[str | None, Header()] = None) -> Response:
        if not may_scrape(authorization, token):
            raise AuthenticationError("This takes the bearer token of BATCHYARD_METRICS_TOKEN.")
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
            # Anybody may send a method of any name where no route is found.
            method = scope["method"] if route else ""
            self._calls.count(method, route, status, time.perf_counter() - started)
