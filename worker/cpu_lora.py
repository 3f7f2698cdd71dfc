"""Leaves rows of a base model alone that are computed beside rows of adapters, without a GPU.

vLLM marks rows without an adapter by the index -1. Its operations in plain torch (0.29) take that
for the last adapter and add its weights; its kernels for GPUs skip such rows. vLLM imports this
module in each of its workers, by the name of the class.
"""

from collections.abc import Callable
from functools import wraps
from types import ModuleType
from typing import Any

_OPERATIONS = ("bgmv_shrink", "bgmv_expand", "bgmv_expand_slice")


class BaseRowsAlone:
    """For vLLM's `worker_extension_cls`. It adds nothing to the worker."""


def _skipping(operation: Callable[..., None]) -> Callable[..., None]:
    @wraps(operation)
    def skips(
        inputs: Any, weights: Any, output: Any, indices: Any, *args: Any, **named: Any
    ) -> None:
        # What is zero adds nothing, whatever weights it meets.
        own = inputs.masked_fill((indices < 0).unsqueeze(-1), 0)
        operation(own, weights, output, indices, *args, **named)

    return skips


def _replace_in(*modules: ModuleType) -> None:
    for name in _OPERATIONS:
        skips = _skipping(getattr(modules[0], name))
        for module in modules:
            setattr(module, name, skips)


def _mend() -> None:
    from vllm.lora.ops.torch_ops import lora_ops
    from vllm.lora.punica_wrapper import punica_cpu

    # The operations for prompts call those of the first; the second has names of its own for them.
    _replace_in(lora_ops, punica_cpu)


_mend()
