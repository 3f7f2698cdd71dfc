"""Live calls: models answer at once, on the engines that run batches.

The gateway authenticates, checks and counts a call, and hands the bytes on to a replica's door.
"""

from contextlib import AsyncExitStack, suppress

import structlog
from fastapi import APIRouter, Request, Response
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from gateway.auth import Tenant
from gateway.bodies import read_bytes
from gateway.dependencies import Use
from gateway.hang_ups import unless_gone
from gateway.live_answers import EVENTS, JSON, envelope, error_event
from gateway.live_call import asked_of, begun, handed_on, whole
from gateway.live_client import Answer, BrokenAnswerError, Handed
from gateway.live_docs import ANSWERS, live_docs, operation_name
from gateway.live_form import body_of_form, is_form
from gateway.live_request import object_of
from shared.cache_salt import cache_salt
from shared.openai.endpoints import ENDPOINTS

log = structlog.get_logger()

router = APIRouter()

#: Without these, proxies hold events back to send several at once.
_STREAM_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}
_ERROR = 400


async def answer_live(request: Request, tenant: Tenant, services: Use) -> Response:
    """The model's answer. With `stream`, it comes as server-sent events.

    The body is that of a batch's row, with the same rules, and may have `stream` besides; a sound
    may come as a file in OpenAI's form. The model needs `live` in the operator's catalog.
    """
    path = request.scope["path"]
    body = await _body_of(request, services.settings.max_live_bytes)
    said = object_of(body)
    asked, adapter = await asked_of(services, tenant, path, said)
    place = await begun(services, tenant, asked, request.state.limit_headers.update)
    async with AsyncExitStack() as stack:
        stack.enter_context(services.live_calls.counting(place))
        bringing = stack.enter_async_context(services.live_media.brought(tenant, asked, said))
        with_media = await unless_gone(request.receive, bringing)
        call = Handed(
            path,
            with_media or body,
            tenant,
            cache_salt(services.settings.cache_key, tenant, asked.model.share_prefixes),
            request.state.request_id,
            adapter,
        )
        answer = await unless_gone(request.receive, handed_on(services, asked, call, stack))
        if answer.content_type.startswith(EVENTS):
            return _LiveStream(answer, path, stack.pop_all())
        return await unless_gone(request.receive, _whole(answer))


for _endpoint in ENDPOINTS.values():
    router.add_api_route(
        _endpoint.path,
        answer_live,
        methods=["POST"],
        name=operation_name(_endpoint),
        response_model=None,
        # vLLM has some of them under other paths besides, which clients of others know.
        include_in_schema=_endpoint.path.startswith("/v1/"),
        responses=ANSWERS,
        openapi_extra=live_docs(_endpoint),
    )


async def _body_of(request: Request, most: int) -> bytes:
    """The call's body, as JSON. Raises InvalidInputError and TooLargeError."""
    endpoint, kind = ENDPOINTS[request.scope["path"]], request.headers.get("content-type", "")
    if is_form(endpoint, kind):
        return await body_of_form(endpoint, kind, request.stream(), max_bytes=most)
    return await read_bytes(request, most)


async def _whole(answer: Answer) -> Response:
    """The answer in one piece. Raises EngineDiedError."""
    body = await whole(answer)
    if answer.status >= _ERROR:
        return Response(envelope(answer.status, body), answer.status, media_type=JSON)
    return Response(body, answer.status, media_type=answer.content_type)


class _LiveStream(Response):
    """Sends events on as they come. What the stack holds ends with it."""

    def __init__(self, answer: Answer, path: str, stack: AsyncExitStack) -> None:
        super().__init__(status_code=answer.status, headers=_STREAM_HEADERS)
        del self.headers["content-length"]
        self.headers["content-type"] = answer.content_type
        self._answer = answer
        self._path = path
        self._stack = stack

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002  # ASGI's
        async with self._stack:
            await send(
                {
                    "type": "http.response.start",
                    "status": self.status_code,
                    "headers": self.raw_headers,
                }
            )
            with suppress(ClientDisconnect):
                await unless_gone(receive, self._send_all(send))

    async def _send_all(self, send: Send) -> None:
        last = b""
        try:
            async for chunk in self._answer.chunks:
                last = chunk
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        except BrokenAnswerError as error:
            log.warning("live.broke", code="engine_died", why=str(error))
            body = error_event(self._path, is_inside=not last.endswith(b"\n\n"))
            await send({"type": "http.response.body", "body": body, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
