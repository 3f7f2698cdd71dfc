"""Live calls in the replica that holds the engine: vLLM's own app answers them, before all rows.

They have the rules of rows, and enter the engine without waiting in its queue.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import structlog

from shared.adapters import adapter_named
from shared.doors import ADAPTER_MISSING
from shared.openai.row_rules import RowRules
from worker.adapter_shelf import AdapterShelf, unknown
from worker.engine_errors import Answer
from worker.engine_results import failure, refusal
from worker.entrance import Entrance
from worker.openai_layer import ABORT_SECONDS, http_scope
from worker.row_defaults import with_defaults

log = structlog.get_logger()

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
#: The result of a request that may not run, by path, body and tenant.
Refused = Callable[[str, Any, str], Awaitable[Answer | None]]

_UNAVAILABLE = 503


class LiveCall(NamedTuple):
    """A call as a gateway hands it on."""

    path: str
    body: bytes
    tenant: str
    cache_salt: str
    request_id: str


class LiveCalls:
    """Belongs to the event loop of the replica."""

    def __init__(
        self,
        client: Any,
        app: Any,
        entrance: Entrance,
        rules: RowRules,
        refused: Refused,
        *,
        shelf: AdapterShelf | None = None,
    ) -> None:
        """`client` is vLLM's, and `app` its FastAPI app; without a shelf nobody has adapters."""
        self._client = client
        self._app = app
        self._entrance = entrance
        self._rules = rules
        self._refused = refused
        self._shelf = shelf
        self._calls: set[asyncio.Task[Any]] = set()
        self._is_closed = False

    @property
    def running(self) -> int:
        """How many run."""
        return len(self._calls)

    async def end_dead(self, seconds: float) -> None:
        """Return when no call runs that the dead core had.

        What has not ended within `seconds` breaks off: its client does not read.
        """
        if not (calls := set(self._calls)):
            return
        _, stalled = await asyncio.wait(calls, timeout=seconds)
        for call in stalled:
            call.cancel()
        if stalled:
            log.warning("live_calls.broken_off", calls=len(stalled))
            await asyncio.wait(stalled)

    def reconnect(self, client: Any, app: Any, shelf: AdapterShelf | None) -> None:
        """Another core has taken the place of the one before."""
        self._client, self._app, self._shelf = client, app, shelf

    def close(self) -> None:
        """Take no more calls: gateways try them elsewhere."""
        self._is_closed = True

    async def answer(self, call: LiveCall, receive: Receive, send: Send) -> None:
        """Answer the call as `vllm serve` would; it leaves the engine when its client goes."""
        task = asyncio.current_task()
        assert task is not None  # noqa: S101  # a coroutine runs in one
        self._calls.add(task)
        try:
            body = await self._checked(call)
            if isinstance(body, tuple):
                await send_result(send, body)
                return
            asked = with_defaults(call.path, self._rules.bounded(call.path, body))
            text = call.body if asked == body else json.dumps(asked).encode()
            async with self._with_adapter(call.tenant, body) as refused:
                if refused is not None:
                    await send_result(send, refused)
                    return
                with self._entrance.entered_live(call.tenant, call.cache_salt):
                    await self._run(call, text, receive, send)
        finally:
            self._calls.discard(task)

    async def bring(self, tenant: str, name: str, archive: bytes) -> Answer | None:
        """Load a tenant's adapter for calls to come; returns the answer if it cannot be."""
        if self._shelf is None:
            return unknown(name)
        return await self._shelf.load(tenant, name, archive)

    @asynccontextmanager
    async def _with_adapter(
        self, tenant: str, body: Mapping[str, Any]
    ) -> AsyncIterator[Answer | None]:
        """Keep the adapter that a call names; yields the answer if it is not here."""
        name = body.get("model")
        if not isinstance(name, str) or adapter_named(name) is None:
            yield None
        elif self._shelf is None:
            yield unknown(name)
        elif not self._shelf.has(tenant, name):
            error = {"message": "The adapter is not loaded.", "type": "server_error"}
            yield failure(ADAPTER_MISSING, error)
        else:
            async with self._shelf.held(name):
                yield None

    async def _checked(self, call: LiveCall) -> dict[str, Any] | Answer:
        """The body of a call that may run, or the result of one that may not."""
        if self._client.errored or self._is_closed:
            error = {"message": "The engine is about to stop or restart.", "type": "server_error"}
            return failure(_UNAVAILABLE, error)
        try:
            body = json.loads(call.body)
        except (ValueError, RecursionError):
            return refusal("The body is not JSON.")
        if not isinstance(body, dict):
            return refusal("The body is no JSON object.")
        if (found := await self._refused(call.path, body, call.tenant)) is not None:
            return found
        return body

    async def _run(self, call: LiveCall, body: bytes, receive: Receive, send: Send) -> None:
        gone = asyncio.Event()
        sent = iter([{"type": "http.request", "body": body}])

        async def receive_here() -> Message:
            for message in sent:
                return message
            await gone.wait()
            return {"type": "http.disconnect"}

        headers = [
            (b"content-type", b"application/json"),
            (b"x-request-id", call.request_id.encode()),
        ]
        running = asyncio.ensure_future(
            self._app(http_scope(call.path, headers), receive_here, send)
        )
        going = asyncio.ensure_future(_hang_up(receive))
        try:
            await asyncio.wait([running, going], return_when=asyncio.FIRST_COMPLETED)
        finally:
            going.cancel()
            if not running.done():
                # This makes vLLM's app abort the request, wherever it waits.
                gone.set()
                if not self._client.errored:
                    await asyncio.wait([running], timeout=ABORT_SECONDS)
                running.cancel()
                await asyncio.wait([running])
        if not running.cancelled():
            # An answer that broke in the middle ends the connection.
            running.result()


async def _hang_up(receive: Receive) -> None:
    """Return when the client has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def send_result(send: Send, result: Answer) -> None:
    """Answer with a result as rows have it."""
    status, body = result
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
