"""Copies that vLLM makes of a tokenizer share what none changes, and nothing else."""

import subprocess
import sys
from pathlib import Path

import pytest

from cli.models.tiny import make_tiny_chat_model

pytest.importorskip("vllm", reason="needs the worker's dependencies")

#: In a process of its own: what it changes holds for the whole of it.
_COPIES = """
import sys
from transformers import AutoTokenizer
from vllm.tokenizers import hf
from worker.tokenizer_copies import share_vocabularies

share_vocabularies()
tokenizer = hf.get_cached_tokenizer(AutoTokenizer.from_pretrained(sys.argv[1]))
copied = hf.copy.deepcopy(tokenizer)
text = "Why couple wagons into trains?"
before = copied.encode(text)
assert before == tokenizer.encode(text)
assert copied._merges is tokenizer._merges or "_merges" not in vars(tokenizer)
assert copied._vocab is tokenizer._vocab
assert copied._tokenizer is not tokenizer._tokenizer
assert copied.init_kwargs is not tokenizer.init_kwargs
tokenizer.add_tokens(["couple"])
tokenizer._tokenizer.enable_truncation(3)
assert copied.encode(text) == before != tokenizer._tokenizer.encode(text).ids
pool = hf.maybe_make_thread_pool(tokenizer, 2)
assert pool.decode(pool.encode(text, add_special_tokens=False)) == text
"""


@pytest.mark.timeout(300)
def test_copies_share_the_vocabulary_and_have_a_state_of_their_own(tmp_path: Path) -> None:
    make_tiny_chat_model(tmp_path)

    done = subprocess.run(
        [sys.executable, "-c", _COPIES, str(tmp_path)], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr[-2000:]
