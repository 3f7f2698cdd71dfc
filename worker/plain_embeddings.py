"""Embeddings of one short text or its tokens, with what `vllm serve` does for them and no more.

vLLM reads each request into a model of pydantic, hands it to a thread and back, and merges the
answers of its one prompt. Of a row of 40 tokens, that is most of what stands before the engine.
"""

import time
from contextlib import aclosing
from functools import cached_property
from typing import Any

from worker.embedding_answers import EmbeddingAnswers
from worker.engine_errors import Answer
from worker.engine_results import success

#: What a request may say besides its prompt, without a meaning of its own here.
_FIELDS = {"model", "input", "encoding_format", "user"}
_FORMATS = ("float", "base64")
#: A longer text would hold up the event loop while it becomes tokens: vLLM has threads for it.
_MAX_CHARACTERS, _MAX_TOKENS = 4000, 1000
#: vLLM's defaults of what a request may say of base64.
_DTYPE, _ENDIANNESS = "float32", "native"


class PlainEmbeddings:
    """Belongs to a `ServingEmbedding` of vLLM, whose parts it calls one after the other."""

    def __init__(self, serving: Any, answers: EmbeddingAnswers) -> None:
        self._serving = serving
        self._answers = answers
        processor = serving.io_processor
        #: Whether rows with longer texts than the model's context are cut into several prompts.
        self._cuts = processor.enable_chunked_processing

    def takes(self, body: Any) -> bool:
        """Whether the request is plain; vLLM's own way has all others, and what is wrong."""
        return (
            isinstance(body, dict)
            and body.keys() <= _FIELDS
            and _is_short(body.get("input"))
            and body.get("encoding_format", "float") in _FORMATS
            and isinstance(body.get("model", ""), str)
            and isinstance(body.get("user", ""), str)
            and self._serving._is_model_supported(body.get("model"))  # noqa: SLF001  # no public name
            and not self._cuts
        )

    async def answer(self, body: Any, request_id: str | None) -> Answer:
        """The answer to a request that it takes. Raises what vLLM's own way raises."""
        from vllm.renderers.inputs.preprocess import parse_model_prompt
        from vllm.utils import random_uuid

        serving, created = self._serving, int(time.time())
        tokenized, pooling = self._parameters
        name = f"{serving.request_id_prefix}-{request_id or random_uuid()}"
        prompt = parse_model_prompt(serving.model_config, body["input"])
        [rendered] = serving.renderer.render_cmpl([prompt], tokenized)
        outputs = serving.engine_client.encode(
            request_id=f"{name}-0", prompt=rendered, pooling_params=pooling
        )
        async with aclosing(outputs):
            found = [output async for output in outputs]
        encoding = body.get("encoding_format", "float")
        model = serving.models.model_name()
        body = self._answers.body(found, name, created, model, encoding, _DTYPE, _ENDIANNESS)
        return success(body.decode())

    @cached_property
    def _parameters(self) -> tuple[Any, Any]:
        """How a plain request becomes tokens, and what is asked of the engine."""
        from vllm.entrypoints.pooling.embed.protocol import EmbeddingCompletionRequest

        request: Any = EmbeddingCompletionRequest(input="0")
        pooling = request.to_pooling_params()
        pooling.verify(self._serving.model_config)
        return request.build_tok_params(self._serving.model_config), pooling


def _is_short(prompt: Any) -> bool:
    if isinstance(prompt, str):
        return 0 < len(prompt) <= _MAX_CHARACTERS
    return (
        isinstance(prompt, list)
        and 0 < len(prompt) <= _MAX_TOKENS
        and all(type(token) is int for token in prompt)
    )
