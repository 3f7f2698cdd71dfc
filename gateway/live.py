"""Live calls: models answer at once, on the engines that run batches.

The gateway authenticates, checks and counts a call, and hands the bytes on to a replica's door.
"""

import secrets
from contextlib import AsyncExitStack, suppress

import structlog
from fastapi import APIRouter, Request, Response
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from gateway.auth import Tenant
from gateway.bodies import read_bytes
from gateway.dependencies import Services, Use
from gateway.hang_ups import unless_gone
from gateway.limit_errors import limit_reached, token_headers, too_many_calls
from gateway.live_answers import EVENTS, JSON, envelope, error_event
from gateway.live_client import Answer, BrokenAnswerError, Handed, ShutError
from gateway.live_docs import ANSWERS, live_docs, operation_name
from gateway.live_request import LiveRequest
from gateway.open_streams import COUNTED_SECONDS
from shared.cache_salt import cache_salt
from shared.errors import EngineDiedError
from shared.openai.endpoints import ENDPOINTS
from shared.state import LiveCallLimits, Stream, TooManyCalls
from shared.submission.admission import Reached

log = structlog.get_logger()

router = APIRouter()

#: Without these, proxies hold events back to send several at once.
_STREAM_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}
#: An engine that dies before it has answered may have died of the call.
_MAX_DEATHS = 2
_ERROR = 400


async def answer_live(request: Request, tenant: Tenant, services: Use) -> Response:
    """The model's answer. With `stream`, it comes as server-sent events.

    The body is that of a batch's row, with the same rules, and may have `stream` besides. The
    model needs `live` in the operator's catalog.
    """
    path = request.scope["path"]
    body = await read_bytes(request, services.settings.max_live_bytes)
    settings = await services.state.tenants.settings(tenant)
    asked = services.live_models.read(path, body, settings.may_use)
    place = await _begun(request, services, tenant, asked)
    call = Handed(
        path,
        body,
        tenant,
        cache_salt(services.settings.cache_key, tenant, asked.model.share_prefixes),
        request.state.request_id,
    )
    async with AsyncExitStack() as stack:
        stack.enter_context(services.live_calls.counting(place))
        answer = await unless_gone(request.receive, _handed_on(services, asked, call, stack))
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


async def _begun(request: Request, services: Services, tenant: str, asked: LiveRequest) -> Stream:
    """Count the call. Raises LimitError."""
    call = Stream(tenant, secrets.token_hex(8))
    given = services.settings
    limits = LiveCallLimits(given.max_live_calls, given.live_tokens_per_minute)
    outcome = await services.state.live_calls.begin(
        call, tokens=asked.tokens, limits=limits, seconds=COUNTED_SECONDS
    )
    if isinstance(outcome, TooManyCalls):
        raise limit_reached(tenant, Reached("live_calls", None, outcome.limit, outcome.used))
    request.state.limit_headers |= token_headers(outcome)
    if outcome.wait:
        raise too_many_calls(tenant, outcome, kind="tokens")
    return call


async def _handed_on(
    services: Services, asked: LiveRequest, call: Handed, stack: AsyncExitStack
) -> Answer:
    """The answer of the first replica that takes the call; `stack` holds it.

    Raises NoEngineError and EngineDiedError.
    """
    assert asked.model.live is not None  # noqa: S101  # it was looked at
    tried: set[str] = set()
    deaths = 0
    while True:
        door = await services.live_doors.choose(
            asked.model.lane, tried=tried, wait_seconds=asked.model.live.wait_seconds
        )
        try:
            async with AsyncExitStack() as attempt:
                attempt.enter_context(services.live_doors.calling(door))
                answer = await attempt.enter_async_context(services.live_client.call(door, call))
                stack.push_async_exit(attempt.pop_all())
                return answer
        except (ShutError, BrokenAnswerError) as error:
            log.warning(
                "live.next_door", replica=door.replica, what=type(error).__name__, why=str(error)
            )
            deaths += isinstance(error, BrokenAnswerError)
            if deaths >= _MAX_DEATHS:
                raise EngineDiedError("Engines died with this call in them.") from error
            tried.add(door.replica)
            services.live_doors.shut(door)


async def _whole(answer: Answer) -> Response:
    """The answer in one piece. Raises EngineDiedError."""
    try:
        body = b"".join([chunk async for chunk in answer.chunks])
    except BrokenAnswerError as error:
        raise EngineDiedError("The engine died while it answered.") from error
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
            log.warning("live.broke", why=str(error))
            body = error_event(self._path, is_inside=not last.endswith(b"\n\n"))
            await send({"type": "http.response.body", "body": body, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
