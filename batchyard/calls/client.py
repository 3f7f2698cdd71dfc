"""OpenAI's own asynchronous client, whose calls become batches."""

import json
from collections.abc import Mapping
from typing import Any, cast

import httpx

from batchyard.calls.batches import BatchSettings, CallBatches
from batchyard.calls.collecting import Calls
from batchyard.target import target_of
from shared.errors import InvalidInputError

try:
    from openai import AsyncOpenAI
except ModuleNotFoundError as missing:
    raise InvalidInputError(
        "AsyncBatchClient needs OpenAI's library. Install it: pip install 'batchyard[openai]'"
    ) from missing

#: The calls that are collected, by their paths behind the base URL.
_COLLECTED = ("/chat/completions", "/completions", "/embeddings", "/responses")


class AsyncBatchClient(AsyncOpenAI):
    """Takes the place of `openai.AsyncOpenAI`: calls are collected and asked as batches.

    Chat completions, completions, embeddings and responses are collected; all other calls, and
    those with `stream=True`, go to the gateway as they are. A call returns the SDK's own object,
    or raises its exception for the status that the engine gave the request.

    The calls of `collect_seconds` for the same model and endpoint are one batch, or as soon as
    there are `max_calls`. With a name as `run`, a process that begins again gets the answers to
    the same calls that an earlier one has asked for. `timeout` has no effect on collected calls.
    """

    def __init__(
        self,
        *,
        api_key: str | None = None,
        base_url: Any = None,
        context: str | None = None,
        run: str | None = None,
        collect_seconds: float = 1.0,
        max_calls: int = 1000,
        window: str = "24h",
        priority: int = 5,
        metadata: Mapping[str, str] | None = None,
        http_client: Any = None,
        **options: Any,
    ) -> None:
        """`options` are those of `AsyncOpenAI`, but for `http_client`, which is this client's own.

        The gateway is `base_url` with `api_key`, or found as the command line finds it.
        Raises InvalidInputError and NotFoundError.
        """
        if http_client is None:
            url = None if base_url is None else str(base_url)
            target = target_of(url, api_key, context)
            batches = CallBatches(target, BatchSettings(window, priority, metadata), run=run)
            calls = Calls(batches, collect_seconds=collect_seconds, max_calls=max_calls)
            base_url, api_key = target.url, target.key
            http_client = _CollectingClient(target.url, calls)
        if not isinstance(http_client, _CollectingClient):
            raise InvalidInputError("AsyncBatchClient has an http_client of its own.")
        self._calls = http_client.calls
        super().__init__(
            api_key=api_key, base_url=base_url, http_client=cast("Any", http_client), **options
        )

    @property
    def waiting(self) -> int:
        """How many collected calls have no answer yet."""
        return self._calls.waiting

    async def close(self) -> None:
        """Send the calls that were collected, wait for all answers, and close."""
        await self._calls.finish()
        await super().close()


class _CollectingClient(httpx.AsyncClient):
    """The SDK hands it on to its copies, as with `with_options`, which share the calls."""

    def __init__(self, url: str, calls: Calls) -> None:
        super().__init__(transport=_Collecting(httpx.URL(url).path, calls), follow_redirects=True)
        self.calls = calls


class _Collecting(httpx.AsyncBaseTransport):
    """Answers calls from batches, and hands all others to the network."""

    def __init__(self, base_path: str, calls: Calls) -> None:
        self._base_path = base_path.rstrip("/")
        self._calls = calls
        self._network = httpx.AsyncHTTPTransport()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path.removeprefix(self._base_path)
        if request.method != "POST" or path not in _COLLECTED:
            return await self._network.handle_async_request(request)
        body = json.loads(await request.aread())
        if body.get("stream"):
            return await self._network.handle_async_request(request)
        answer = await self._calls.answer(f"/v1{path}", body)
        # The SDK would ask again what was asked for good.
        headers = {"x-should-retry": "false"}
        return httpx.Response(answer.status, headers=headers, json=answer.body)

    async def aclose(self) -> None:
        await self._network.aclose()
