"""Requests that kill vLLM's newer runner, refused in front of it.

`v1/worker/gpu/sample` has room for so much of a request, and raises in the core process, which ends
it. What follows from the tokenizer alone is not known before.
"""

from typing import Any

#: Tokens of all `bad_words` together, and of `stop_token_ids` with the model's own beside
#: `min_tokens`.
_MAX_BAD_TOKENS, _MAX_STOP_TOKENS = 1024, 128


def refuse_killers(client: Any) -> None:
    """Let a started `AsyncLLM` refuse such requests as it does invalid ones."""
    processor = client.input_processor
    process = processor.process_inputs

    def process_inputs(*args: Any, **options: Any) -> Any:
        request = process(*args, **options)
        if request.sampling_params is not None:
            _check(request.sampling_params)
        return request

    processor.process_inputs = process_inputs


def _check(params: Any) -> None:
    from vllm.exceptions import VLLMValidationError

    words = sum(map(len, params.bad_words_token_ids or ()))
    if words > _MAX_BAD_TOKENS:
        raise VLLMValidationError(
            f"The bad words have {words} tokens together, with and without a blank in front, and a "
            f"request may have {_MAX_BAD_TOKENS}. Use fewer or shorter ones.",
            parameter="bad_words",
        )
    stops = len(params.all_stop_token_ids)
    if params.min_tokens and stops > _MAX_STOP_TOKENS:
        raise VLLMValidationError(
            f"The request has {stops} stop tokens with those of the model, and beside 'min_tokens' "
            f"it may have {_MAX_STOP_TOKENS}. Use fewer.",
            parameter="stop_token_ids",
        )
