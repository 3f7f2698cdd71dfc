"""Transcriptions and translations whose request is JSON with a `data:` URL, as rows of batches are.

vLLM's own routes take a form with a file. They are replaced, so that rows and live calls find ours.
"""

import base64
import binascii
import io
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

from shared.openai.bodies import Refusal, read_body
from shared.openai.endpoints import ENDPOINTS
from worker.engine_results import refusal

_FIELD = "file_url"


class _Ear(NamedTuple):
    """vLLM's own request of one endpoint, and what answers it."""

    path: str
    request: type[Any]
    answer: Callable[[bytes, Any, Any], Awaitable[Any]]


def add_hearing(app: Any) -> None:
    """Let vLLM's app take sounds as `data:` URLs, if its model hears."""
    for ear in _ears(app.state):
        routes = app.router.routes
        routes[:] = [one for one in routes if getattr(one, "path", None) != ear.path]
        app.add_api_route(ear.path, _route(ear), methods=["POST"])


def _ears(state: Any) -> list[_Ear]:
    hears = getattr(state, "openai_serving_transcription", None)
    translates = getattr(state, "openai_serving_translation", None)
    if hears is None or translates is None:
        return []
    from vllm.entrypoints.speech_to_text.transcription.protocol import TranscriptionRequest
    from vllm.entrypoints.speech_to_text.translation.protocol import TranslationRequest

    return [
        _Ear("/v1/audio/transcriptions", TranscriptionRequest, hears.create_transcription),
        _Ear("/v1/audio/translations", TranslationRequest, translates.create_translation),
    ]


def _route(ear: _Ear) -> Callable[..., Awaitable[Any]]:
    from fastapi import Request, UploadFile
    from fastapi.responses import JSONResponse, Response, StreamingResponse
    from vllm.entrypoints.serve.engine.protocol import ErrorResponse
    from vllm.entrypoints.serve.utils.api_utils import with_cancellation

    async def answered(raw_request: Request, sound: bytes, asked: Any) -> Response:
        answer = await ear.answer(sound, asked, raw_request)
        if isinstance(answer, ErrorResponse):
            return JSONResponse(answer.model_dump(), answer.error.code)
        if hasattr(answer, "model_dump"):
            return JSONResponse(answer.model_dump())
        return StreamingResponse(answer, media_type="text/event-stream")

    until_gone: Callable[..., Awaitable[Response]] = with_cancellation(  # type: ignore[no-untyped-call]  # vLLM's
        answered
    )

    async def hear(raw_request: Request) -> Response:
        body = await raw_request.json()
        found = sound_of(ear.path, body)
        if isinstance(found, Refusal):
            status, content = refusal(f"{found.message}.", param=found.param)
            return Response(content, status, media_type="application/json")
        fields = {name: value for name, value in body.items() if name != _FIELD}
        # The request names its file; what is in it goes beside it.
        asked = ear.request.model_validate({**fields, "file": UploadFile(io.BytesIO())})
        # It listens for the end of the call, so the body has been read before.
        return await until_gone(raw_request=raw_request, sound=found, asked=asked)

    return hear


def sound_of(path: str, body: Mapping[str, Any]) -> bytes | Refusal:
    """The file that the body brings along."""
    if isinstance(read := read_body(ENDPOINTS[path].body, body), Refusal):
        return read
    head, comma, data = str(body[_FIELD]).partition(",")
    if not comma or head[:5].lower() != "data:" or not head.endswith(";base64"):
        return Refusal(_FIELD, "The engine takes `data:` URLs with base64 only")
    try:
        return base64.b64decode(data, validate=True)
    except binascii.Error:
        return Refusal(_FIELD, "What stands in this URL is no base64")
