"""vLLM's own request models beside ours: what ours refuse, vLLM refuses too.

Needs vLLM and no engine. What vLLM checks after its models, before a row costs anything, is asked
too: sampling parameters, and the parts of a message that pydantic reads late.
"""

import copy
import warnings
from collections.abc import Callable
from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shared.openai.bodies import Refusal, read_body
from shared.openai.endpoints import ENDPOINTS
from tests.bodies import (
    CHAT,
    CLASSIFY,
    COMPLETIONS,
    EMBEDDINGS,
    GOOD,
    MESSAGES,
    MODERATIONS,
    ODD,
    OTHER_PATHS,
    POOLING,
    RERANK,
    RESPONSES,
    SCORE,
    TRANSCRIPTIONS,
    TRANSLATIONS,
    WRONG,
    made_up,
)

_CONTEXT, _PROMPT = 4096, 10


def _takes_chat(body: Any) -> None:
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

    request = ChatCompletionRequest.model_validate(body)
    for message in request.messages:
        content = message.get("content") if isinstance(message, dict) else None
        if content is not None and not isinstance(content, str):
            list(content)
    limit = request.max_completion_tokens
    _takes_sampling(request, request.max_tokens if limit is None else limit)


def _takes_completion(body: Any) -> None:
    from vllm.entrypoints.openai.completion.protocol import CompletionRequest

    request = CompletionRequest.model_validate(body)
    _takes_sampling(request, request.max_tokens)


def _takes_sampling(request: Any, limit: int | None) -> None:
    max_tokens = _max_tokens(limit)
    if request.use_beam_search:
        request.to_beam_search_params(max_tokens, {})
    else:
        request.to_sampling_params(max_tokens, {})


def _takes_embedding(body: Any) -> None:
    from pydantic import TypeAdapter
    from vllm.entrypoints.pooling.embed.protocol import EmbeddingRequest

    request: Any = TypeAdapter(EmbeddingRequest).validate_python(body)
    dimensions = request.to_pooling_params().dimensions
    # PoolingParams refuses them for each model: either because they are outside of its range, or
    # because it has no choice of dimensions.
    assert dimensions is None or dimensions >= 1


def _takes_message(body: Any) -> None:
    from vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest
    from vllm.entrypoints.anthropic.serving import AnthropicServingMessages

    AnthropicServingMessages.to_chat_completion_request(
        AnthropicMessagesRequest.model_validate(body)
    )


def _takes_score(body: Any) -> None:
    from pydantic import TypeAdapter
    from vllm.entrypoints.pooling.scoring.protocol import ScoreRequest

    request: Any = TypeAdapter(ScoreRequest).validate_python(body)
    request.to_pooling_params()


def _takes_rerank(body: Any) -> None:
    from vllm.entrypoints.pooling.scoring.protocol import RerankRequest

    RerankRequest.model_validate(body).to_pooling_params()


def _takes_classification(body: Any) -> None:
    from pydantic import TypeAdapter
    from vllm.entrypoints.pooling.classify.protocol import ClassificationRequest

    request: Any = TypeAdapter(ClassificationRequest).validate_python(body)
    request.to_pooling_params()


def _takes_pooling(body: Any) -> None:
    from pydantic import TypeAdapter
    from vllm.entrypoints.pooling.pooling.protocol import PoolingRequest

    request: Any = TypeAdapter(PoolingRequest).validate_python(body)
    # Its handler refuses them.
    assert getattr(request, "dimensions", None) is None


def _takes_response(body: Any) -> None:
    from vllm.entrypoints.openai.responses.protocol import ResponsesRequest

    request = ResponsesRequest.model_validate(body)
    request.to_sampling_params(_max_tokens(request.max_output_tokens), {})


def _takes_transcription(body: Any) -> None:
    request = _transcription_request().model_validate(body)
    request.to_sampling_params(_CONTEXT, {})


def _takes_translation(body: Any) -> None:
    request = _translation_request().model_validate(body)
    request.to_sampling_params(_CONTEXT, {})


def _max_tokens(limit: int | None) -> int:
    from vllm.entrypoints.serve.utils.api_utils import get_max_tokens

    return get_max_tokens(_CONTEXT, limit, _PROMPT, {})


_TAKES: dict[str, Callable[[Any], None]] = {
    CHAT: _takes_chat,
    COMPLETIONS: _takes_completion,
    EMBEDDINGS: _takes_embedding,
    RESPONSES: _takes_response,
    MESSAGES: _takes_message,
    SCORE: _takes_score,
    RERANK: _takes_rerank,
    CLASSIFY: _takes_classification,
    POOLING: _takes_pooling,
    TRANSCRIPTIONS: _takes_transcription,
    TRANSLATIONS: _takes_translation,
}


def _chat_request() -> Any:
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

    return ChatCompletionRequest


def _completion_request() -> Any:
    from vllm.entrypoints.openai.completion.protocol import CompletionRequest

    return CompletionRequest


def _embedding_request() -> Any:
    from vllm.entrypoints.pooling.embed.protocol import EmbeddingRequest

    return EmbeddingRequest


def _response_request() -> Any:
    from vllm.entrypoints.openai.responses.protocol import ResponsesRequest

    return ResponsesRequest


def _messages_request() -> Any:
    from vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest

    return AnthropicMessagesRequest


def _score_request() -> Any:
    from vllm.entrypoints.pooling.scoring.protocol import ScoreRequest

    return ScoreRequest


def _rerank_request() -> Any:
    from vllm.entrypoints.pooling.scoring.protocol import RerankRequest

    return RerankRequest


def _classification_request() -> Any:
    from vllm.entrypoints.pooling.classify.protocol import ClassificationRequest

    return ClassificationRequest


def _pooling_request() -> Any:
    from vllm.entrypoints.pooling.pooling.protocol import PoolingRequest

    return PoolingRequest


def _transcription_request() -> Any:
    from vllm.entrypoints.launchers.run_batch import BatchTranscriptionRequest

    return BatchTranscriptionRequest


def _translation_request() -> Any:
    from vllm.entrypoints.launchers.run_batch import BatchTranslationRequest

    return BatchTranslationRequest


_REQUESTS: dict[str, Callable[[], Any]] = {
    CHAT: _chat_request,
    COMPLETIONS: _completion_request,
    EMBEDDINGS: _embedding_request,
    RESPONSES: _response_request,
    MESSAGES: _messages_request,
    SCORE: _score_request,
    RERANK: _rerank_request,
    CLASSIFY: _classification_request,
    POOLING: _pooling_request,
    TRANSCRIPTIONS: _transcription_request,
    TRANSLATIONS: _translation_request,
}


def _vllm_fields(kind: Any) -> set[str]:
    """The fields of a request model, or of all models that a request may have."""
    if hasattr(kind, "model_fields"):
        return set(kind.model_fields)
    return {name for one in get_args(kind) for name in _vllm_fields(one)}


def _vllm_refuses(path: str, body: dict[str, Any]) -> bool:
    with warnings.catch_warnings():
        # It deprecates fields of its own.
        warnings.simplefilter("ignore")
        try:
            # Its models change what they are given.
            _TAKES[path](copy.deepcopy(body))
        except Exception:  # noqa: BLE001  # whatever it raises, the row gets an error
            return True
    return False


def test_every_endpoint_is_compared() -> None:
    # vLLM has no moderations.
    assert {*_TAKES, *OTHER_PATHS, MODERATIONS} == {*ENDPOINTS}
    assert all(ENDPOINTS[path].body is ENDPOINTS[like].body for path, like in OTHER_PATHS.items())


@pytest.mark.parametrize("path", _TAKES)
def test_each_field_of_vllm_is_either_open_or_closed(path: str) -> None:
    """An engine of a later version may have new ones, and each has to be judged."""
    endpoint = ENDPOINTS[path]

    assert _vllm_fields(_REQUESTS[path]()) - endpoint.fields - endpoint.body.closed == set()


@pytest.mark.parametrize(("path", "change", "param"), WRONG)
def test_vllm_refuses_what_is_refused_here(path: str, change: dict[str, Any], param: str) -> None:
    assert _vllm_refuses(path, {**GOOD[path], **change})


@pytest.mark.parametrize(("path", "change"), [*((path, {}) for path in _TAKES), *ODD])
def test_vllm_takes_what_is_taken_here(path: str, change: dict[str, Any]) -> None:
    assert not _vllm_refuses(path, {**GOOD[path], **change})


@pytest.mark.parametrize("path", _TAKES)
@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_nothing_that_vllm_would_answer_is_refused(path: str, data: st.DataObject) -> None:
    model = ENDPOINTS[path].body
    body = data.draw(made_up(path, frozenset(model.model_fields)))

    found = read_body(model, copy.deepcopy(body))

    if isinstance(found, Refusal):
        assert _vllm_refuses(path, body), found
