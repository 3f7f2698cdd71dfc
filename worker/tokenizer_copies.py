"""Lets the copies that vLLM makes of a tokenizer share what none of them changes.

vLLM copies a model's tokenizer for each thread that may use it. The copy of the library in Rust is
the one that counts; Python's own copies of vocabulary and merges, entry by entry, take as long.
"""

import copy
from types import SimpleNamespace
from typing import Any

#: Of transformers' tokenizers, where they are made from; nothing changes them afterwards.
_SHARED = ("_vocab", "_merges")


def share_vocabularies() -> None:
    """From now on, copies that vLLM makes in this process share them."""
    from vllm.tokenizers import hf

    # It has no place of its own for this; nothing else in the module copies deeply.
    module: Any = hf
    module.copy = SimpleNamespace(copy=copy.copy, deepcopy=_deepcopy)


def _deepcopy(tokenizer: Any) -> Any:
    shared = (vars(tokenizer).get(name) for name in _SHARED)
    return copy.deepcopy(tokenizer, {id(one): one for one in shared if one is not None})
