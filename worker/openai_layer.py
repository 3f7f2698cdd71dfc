"""vLLM's own OpenAI layer, called in the process that holds the engine, one request at a time."""

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from shared.openai.endpoints import ENDPOINTS
from worker.embedding_answers import EmbeddingAnswers
from worker.engine_errors import Answer
from worker.engine_results import failure, from_http, success
from worker.hearing import add_hearing
from worker.hidden_words import hide_words
from worker.invalid_bodies import tell_only_places, without_values
from worker.moderations import add_moderations, moderation_from
from worker.plain_embeddings import PlainEmbeddings

#: How long an abandoned request may take to leave vLLM, in seconds.
ABORT_SECONDS = 5
_EMBEDDINGS = "/v1/embeddings"

#: As ASGI has them.
Headers = list[tuple[bytes, bytes]]


class OpenAILayer:
    """Answers requests as `vllm serve` would."""

    def __init__(self, app: Any) -> None:
        hide_words()
        add_moderations(app, moderation_from(os.environ))
        add_hearing(app)
        tell_only_places(app)
        self._app = app
        self._handlers = _handlers(app.state)
        self._embeddings = _plain_embeddings(app.state)

    @property
    def endpoints(self) -> set[str]:
        """The paths that this model's engine answers, as far as its app has them."""
        return {getattr(route, "path", "") for route in self._app.routes} & ENDPOINTS.keys()

    async def answer(self, url: str, body: Any, request_id: str | None) -> Answer:
        """The engine's answer to a request; vLLM's words for one that it rejects."""
        try:
            return await self._answer(url, body, request_id)
        except Exception as error:  # noqa: BLE001  # the failure of a row is its result
            return _failure_of(error)

    async def _answer(self, url: str, body: Any, request_id: str | None) -> Answer:
        if url == _EMBEDDINGS and self._embeddings and self._embeddings.takes(body):
            return await self._embeddings.answer(body, request_id)
        headers = [(b"content-type", b"application/json")]
        if request_id is not None:
            headers.append((b"x-request-id", request_id.encode()))
        handler = self._handlers.get(url)
        if handler is None:
            return await self._answer_by_app(url, body, headers)
        try:
            request = handler.parse(body)
        except Exception:  # noqa: BLE001  # the app reports what is wrong
            return await self._answer_by_app(url, body, headers)
        scope = {"type": "http", "method": "POST", "path": url, "headers": headers}
        return _result_of(await handler.answer(request, Request(scope)))

    async def _answer_by_app(self, url: str, body: Any, headers: Headers) -> Answer:
        """Use vLLM's whole FastAPI app: every endpoint, and its words for invalid bodies.

        It costs about 1.6 ms of CPU per request, so the busy endpoints avoid it.
        """
        sent = iter([{"type": "http.request", "body": json.dumps(body).encode()}])
        abandoned = asyncio.Event()
        status, chunks, content_type = 500, [], b""

        async def receive() -> dict[str, Any]:
            for message in sent:
                return message
            await abandoned.wait()
            # Nothing else makes vLLM's app abort a request.
            return {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            nonlocal status, content_type
            if message["type"] == "http.response.start":
                status = message["status"]
                content_type = dict(message["headers"]).get(b"content-type", b"")
            elif message["type"] == "http.response.body":
                chunks.append(message.get("body", b""))

        call = asyncio.ensure_future(self._app(http_scope(url, headers), receive, send))
        try:
            await asyncio.shield(call)
        except asyncio.CancelledError:
            abandoned.set()
            await asyncio.wait([call], timeout=ABORT_SECONDS)
            raise
        return from_http(status, b"".join(chunks), content_type)


class _Handler(NamedTuple):
    """One of vLLM's serving objects: how it reads a body, and the call that answers it."""

    parse: Callable[[Any], Any]
    answer: Callable[[Any, Request], Awaitable[Any]]


def _handlers(state: Any) -> dict[str, _Handler]:
    """The busy endpoints that this model has, without the web framework around them."""
    from pydantic import TypeAdapter
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.entrypoints.openai.completion.protocol import CompletionRequest
    from vllm.entrypoints.pooling.classify.protocol import ClassificationRequest
    from vllm.entrypoints.pooling.embed.protocol import EmbeddingRequest
    from vllm.entrypoints.pooling.pooling.protocol import PoolingRequest
    from vllm.entrypoints.pooling.scoring.protocol import RerankRequest, ScoreRequest

    found: dict[str, _Handler] = {}
    if chat := getattr(state, "openai_serving_chat", None):
        found["/v1/chat/completions"] = _Handler(
            ChatCompletionRequest.model_validate, chat.create_chat_completion
        )
    if completion := getattr(state, "openai_serving_completion", None):
        found["/v1/completions"] = _Handler(
            CompletionRequest.model_validate, completion.create_completion
        )
    pooling: tuple[tuple[str, Any, tuple[str, ...]], ...] = (
        ("serving_embedding", EmbeddingRequest, (_EMBEDDINGS,)),
        ("serving_pooling", PoolingRequest, ("/pooling",)),
        ("serving_classification", ClassificationRequest, ("/classify",)),
        ("serving_scores", ScoreRequest, ("/v1/score", "/score")),
        ("serving_scores", RerankRequest, ("/v1/rerank", "/v2/rerank", "/rerank")),
    )
    for name, request, paths in pooling:
        if serving := getattr(state, name, None):
            if hasattr(serving, "json_response_cls"):
                serving.json_response_cls = _FastJSONResponse
            handler = _Handler(TypeAdapter(request).validate_python, serving)
            found |= dict.fromkeys(paths, handler)
    return found


def _plain_embeddings(state: Any) -> PlainEmbeddings | None:
    """The short way of this model's embeddings; the other one writes its answers alike."""
    serving = getattr(state, "serving_embedding", None)
    if serving is None:
        return None
    answers = EmbeddingAnswers()
    answers.write_for(serving)
    return PlainEmbeddings(serving, answers)


class _FastJSONResponse(JSONResponse):
    """Encodes the same numbers fifteen times faster: a vector of 384 takes 13 µs, not 190."""

    def render(self, content: Any) -> bytes:
        return msgspec.json.encode(content)


def http_scope(url: str, headers: Headers) -> dict[str, Any]:
    """The ASGI scope of a call that vLLM's app answers in its own process."""
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": url,
        "raw_path": url.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": headers,
        "client": ("127.0.0.1", 0),
        "server": ("127.0.0.1", 80),
    }


def _result_of(answer: Any) -> Answer:
    if isinstance(answer, Response):
        content_type = answer.headers.get("content-type", "").encode()
        return from_http(answer.status_code, bytes(getattr(answer, "body", b"")), content_type)
    if hasattr(answer, "error"):
        return failure(answer.error.code, answer.error.model_dump())
    return success(answer.model_dump_json())


def _failure_of(error: Exception) -> Answer:
    """What vLLM's app would have answered."""
    from vllm.entrypoints.serve.exception_handling.error_response import (
        create_error_response,
    )

    answer = create_error_response(without_values(error)).error
    return failure(answer.code, answer.model_dump())
