"""Which of vLLM's steps run as one CUDA graph.

By its default, `FULL_AND_PIECEWISE`, these are the steps in which all sequences get one token. One
with any part of a prompt runs piece by piece, and takes half as long again: everybody in the engine
feels each row that begins, above all people who wait for their next token. With `FULL`, steps of
both kinds are one graph, up to vLLM's largest, which has 512 tokens.
"""

from typing import Any

#: The cards, and the version of FlashAttention, whose kernels fit into graphs of any prompts.
_HOPPER, _FLASH_ATTENTION = 90, 3


def graph_prompts(config: Any, *, is_chosen: bool) -> bool:
    """Let steps with prompts be graphs, too, where vLLM's attention can; returns whether they are.

    `config` is vLLM's configuration. What the operator has chosen, and any other mode that vLLM has
    found right for the model, stays.
    """
    from vllm.config import CUDAGraphMode

    compilation = config.compilation_config
    is_default = not is_chosen and compilation.cudagraph_mode is CUDAGraphMode.FULL_AND_PIECEWISE
    # Attention in chunks can be in no whole graph, and vLLM would not start.
    if not is_default or config.model_config.attention_chunk_size or not _attention_can():
        return False
    compilation.cudagraph_mode = CUDAGraphMode.FULL
    return True


def _attention_can() -> bool:
    """Whether it is the attention of Hopper cards: that of others knows graphs of one token each.

    vLLM would find that out, too, and go back to its default, with a warning.
    """
    from vllm.platforms import current_platform

    if not current_platform.is_cuda() or not current_platform.is_device_capability_family(_HOPPER):
        return False
    from vllm.v1.attention.backends.fa_utils import get_flash_attn_version

    return bool(get_flash_attn_version() == _FLASH_ATTENTION)
