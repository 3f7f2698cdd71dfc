"""Live calls that come as messages: each is answered as the same call over HTTP would be.

A message is taken off its queue when it has its answer. A gateway that ends gives back those that
it has, and another one answers them if their deadlines allow.
"""

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from typing import NamedTuple

import msgspec
import structlog
from aio_pika.abc import AbstractIncomingMessage

from gateway.dependencies import Services
from gateway.errors import answer as error_answer
from gateway.limit_errors import limit_reached
from gateway.limits import live_rate
from gateway.live_answers import envelope
from gateway.live_call import asked_of, begun, handed_on, whole
from gateway.live_client import Handed
from shared import ids
from shared.bus.broker_errors import CONNECTION_ERRORS, RefusedError
from shared.bus.dead_letters import sent_properties
from shared.bus.live_messages import (
    MAX_AHEAD_SECONDS,
    REPLY,
    Asked,
    LiveRequest,
    decode_live_request,
)
from shared.bus.topology import MAX_MESSAGE_BYTES
from shared.cache_salt import cache_salt
from shared.errors import DeadlineError, InvalidInputError, NotFoundError, TransientError
from shared.openai.endpoints import ENDPOINTS
from shared.openai.row_rules import wants_stream
from shared.openai.shapes import ErrorEnvelope
from shared.submission.admission import Reached
from shared.tasks import end

log = structlog.get_logger()

_ERROR = 400


class _Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    #: JSON.
    body: bytes


class LiveMessages:
    """Those that this gateway answers. Belongs to one event loop."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._prefetch = services.settings.live_messages_in_hand
        self._running: set[asyncio.Task[None]] = set()
        #: Calls of this gateway, by tenant.
        self._calls = Counter[str]()

    @asynccontextmanager
    async def answered(self) -> AsyncIterator[None]:
        """Answer messages until the context ends, which gives back those without an answer."""
        bus = self._services.bus
        try:
            bus.consume_live(self._take, prefetch=self._prefetch)
            yield
        finally:
            await bus.end_consuming()
            await end(*self._running)

    async def _take(self, message: AbstractIncomingMessage) -> None:
        # In a task of our own: the client cancels its own when a connection is lost.
        running = asyncio.create_task(self._settle(message))
        self._running.add(running)
        running.add_done_callback(self._running.discard)

    async def _settle(self, message: AbstractIncomingMessage) -> None:
        asked = Asked(
            message.user_id, message.routing_key or "", sent_properties(message), message.headers
        )
        if (address := asked.reply_to) is None or (tenant := asked.tenant) is None:
            # Nobody would hear the answer, so nothing runs.
            log.info("live.message_without_address", tenant=asked.tenant)
        else:
            request_id, began = ids.new_http_request_id(), time.perf_counter()
            with structlog.contextvars.bound_contextvars(request_id=request_id):
                answer = await self._answer(tenant, asked, message.body, request_id)
                await self._reply(address, asked, answer, request_id)
                milliseconds = round((time.perf_counter() - began) * 1000)
                log.debug(
                    "live.message_answered", status=answer.status, tenant=tenant, ms=milliseconds
                )
        with suppress(*CONNECTION_ERRORS):
            await message.ack()

    async def _answer(self, tenant: str, asked: Asked, body: bytes, request_id: str) -> _Answer:
        headers: dict[str, str] = {}
        try:
            request = decode_live_request(asked, body)
            async with _until(request.deadline_ms / 1000):
                with self._counted(tenant):
                    status, answer = await self._call(tenant, request, request_id, headers)
        except Exception as error:  # noqa: BLE001  # a bug in one call must not stop the others; its message may quote a prompt
            return await self._refusal(error, headers)
        return _Answer(status, headers, answer)

    async def _call(
        self, tenant: str, request: LiveRequest, request_id: str, headers: dict[str, str]
    ) -> tuple[int, bytes]:
        """The status and the body. Raises what calls over HTTP are refused with."""
        services, path = self._services, request.endpoint
        asked, adapter = await asked_of(services, tenant, path, request.body)
        if wants_stream(ENDPOINTS[path], request.body):
            text = "Invalid 'stream': an answer by message comes whole. Leave it out."
            raise InvalidInputError(text, param="stream", code="invalid_value")
        rate = live_rate(services.settings)
        place = await begun(services, tenant, asked, headers.update, requests=rate)
        async with AsyncExitStack() as stack:
            stack.enter_context(services.live_calls.counting(place))
            bringing = services.live_media.brought(tenant, asked, request.body)
            with_media = await stack.enter_async_context(bringing)
            call = Handed(
                path,
                with_media or json.dumps(request.body).encode(),
                tenant,
                cache_salt(services.settings.cache_key, tenant, asked.model.share_prefixes),
                request_id,
                adapter,
            )
            answer = await handed_on(services, asked, call, stack)
            body = await whole(answer)
        if len(body) > MAX_MESSAGE_BYTES // 2:
            text = f"The answer has {len(body)} bytes, too many for a message. Call over HTTP."
            raise InvalidInputError(text, code="answer_too_large")
        failed = answer.status >= _ERROR
        return answer.status, envelope(answer.status, body) if failed else body

    async def _refusal(self, error: Exception, headers: dict[str, str]) -> _Answer:
        if isinstance(error, NotFoundError | InvalidInputError):
            # The tenant's settings may be missing because a rebuild of Redis is under way.
            try:
                await self._services.state.restore.raise_if_under_way()
            except TransientError as unsure:
                error = unsure
        what = error_answer(error)
        if what.body.code is None and what.body.type == "server_error":
            # Not its text, which may quote a prompt.
            log.warning("live.message_failed", error=type(error).__name__)
        body = ErrorEnvelope(error=what.body).model_dump_json().encode()
        return _Answer(what.status, {**headers, **what.headers}, body)

    async def _reply(self, address: str, asked: Asked, answer: _Answer, request_id: str) -> None:
        body = msgspec.json.encode(
            {
                "status_code": answer.status,
                "request_id": request_id,
                "headers": answer.headers,
                "body": msgspec.Raw(answer.body),
            }
        )
        properties = {
            "message_id": request_id,
            "type": REPLY,
            "content_type": "application/json",
            "correlation_id": asked.correlation_id,
        }
        try:
            await self._services.bus.reply(address, body, properties=properties)
        except RefusedError:
            log.info("live.message_nobody_waits")
        except TransientError as error:
            # The address has died with the broker's connection.
            log.warning("live.message_not_answered", reason=str(error))

    @contextmanager
    def _counted(self, tenant: str) -> Iterator[None]:
        """Raises LimitError if the tenant has half of all places here."""
        limit = self._prefetch // 2
        if self._calls[tenant] >= limit:
            raise limit_reached(tenant, Reached("live_calls", None, limit, self._calls[tenant]))
        self._calls[tenant] += 1
        try:
            yield
        finally:
            self._calls[tenant] -= 1
            if not self._calls[tenant]:
                del self._calls[tenant]


@asynccontextmanager
async def _until(deadline: float) -> AsyncIterator[None]:
    """End what takes longer than until then (Unix seconds).

    Raises DeadlineError, and InvalidInputError for a time that no live call can mean.
    """
    left = deadline - time.time()
    if left > MAX_AHEAD_SECONDS:
        text = f"deadline_ms: it is {left:.0f} seconds ahead; at most {MAX_AHEAD_SECONDS} may be."
        raise InvalidInputError(text, param="deadline_ms", code="schema_invalid")
    if left <= 0:
        raise DeadlineError(
            f"The deadline passed {-left:.1f} seconds before the call began. 'deadline_ms' is a "
            "Unix time in milliseconds."
        )
    limit = asyncio.timeout(left)
    try:
        async with limit:
            yield
    except TimeoutError:
        if limit.expired():
            raise DeadlineError("The deadline passed before the call had its answer.") from None
        raise
