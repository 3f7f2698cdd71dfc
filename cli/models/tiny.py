"""Tiny models with random weights: they talk nonsense along every code path of real ones."""

import inspect
import json
import keyword
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

#: Written last: a folder without it is an unfinished model.
MARKER = ".complete"

#: Changes with the model, so that an old folder is replaced.
VERSION = "1"

VOCABULARY = 2048
MAX_POSITIONS = 2048

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")

# Tool calls in the form that vLLM's `hermes` parser reads.
CHAT_TEMPLATE = """\
{%- if tools %}
{{- '<|im_start|>system\\n' }}
{%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
{{- '<tools>' }}
{%- for tool in tools %}{{- '\\n' + (tool | tojson) }}{%- endfor %}
{{- '\\n</tools><|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{%- if not (tools and loop.first and message.role == 'system') %}
{{- '<|im_start|>' + message.role + '\\n' + (message.content or '') }}
{%- for call in message.tool_calls or [] %}
{{- '\\n<tool_call>\\n' + (call.function | tojson) + '\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""


def make_tiny_chat_model(target: Path) -> Path:
    """Make the model in `target` unless it is there; the bytes are the same every time."""
    return made(target, VERSION, _write_weights)


def make_tiny_classifier(target: Path, *, labels: tuple[str, ...] = ("relevance",)) -> Path:
    """The same body with a head that sorts texts by these labels; one label makes a reranker."""
    version = f"{VERSION} {' '.join(labels)}"
    return made(target, version, lambda folder: _write_classifier(folder, labels))


def make_tiny_adapter(target: Path) -> Path:
    """A LoRA adapter of the chat model, as PEFT would write it."""
    return made(target, VERSION, _write_adapter, with_tokenizer=False)


def made(
    target: Path,
    version: str,
    write_weights: Callable[[Path], None],
    *,
    with_tokenizer: bool = True,
) -> Path:
    """Make a model in `target` unless it is there in this version."""
    if _is_complete(target, version):
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        if with_tokenizer:
            _write_tokenizer(unfinished)
        write_weights(unfinished)
        (unfinished / MARKER).write_text(version, encoding="utf-8")
        # Engines may run as another user; the library makes weights readable by the owner only.
        for path in (unfinished, *unfinished.iterdir()):
            path.chmod(0o755 if path.is_dir() else 0o644)
        _move_into_place(unfinished, target, version)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return target


def _is_complete(target: Path, version: str) -> bool:
    marker = target / MARKER
    return marker.is_file() and marker.read_text(encoding="utf-8") == version


def _move_into_place(made: Path, target: Path, version: str) -> None:
    if target.exists() and not _is_complete(target, version):
        shutil.rmtree(target)
    try:
        made.rename(target)
    except OSError:
        # Another process has made the same model in the meantime.
        if not _is_complete(target, version):
            raise


def _write_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_english(), trainer)
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",  # noqa: S106  # a token of text
        pad_token="<|endoftext|>",  # noqa: S106  # as above
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=MAX_POSITIONS,
    ).save_pretrained(folder)


def _english() -> Iterator[str]:
    """Text that comes with every Python: the standard library's documentation."""
    import argparse
    import asyncio
    import collections
    import csv
    import datetime as dt
    import logging
    import pathlib
    import random
    import statistics

    for module in (
        argparse, asyncio, collections, csv, dt, json, logging, pathlib, random, statistics,
    ):  # fmt: skip
        yield inspect.getdoc(module) or ""
        for name in sorted(vars(module)):
            if not name.startswith("_"):
                yield f"{name}: {inspect.getdoc(vars(module)[name]) or ''}"
    yield " ".join(keyword.kwlist)


def _write_weights(folder: Path) -> None:
    import torch
    from transformers import Qwen2ForCausalLM

    config = qwen2_config(width=128, layers=2, initializer_range=0.2, dtype="bfloat16")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(20)
        model = Qwen2ForCausalLM(config)
    save_weights(folder, model, torch.bfloat16)


def _write_classifier(folder: Path, labels: tuple[str, ...]) -> None:
    import torch
    from transformers import Qwen2ForSequenceClassification

    config = qwen2_config(width=128, layers=2, initializer_range=0.2, dtype="bfloat16")
    config.architectures = ["Qwen2ForSequenceClassification"]
    config.id2label = dict(enumerate(labels))
    config.label2id = {label: number for number, label in enumerate(labels)}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(21)
        model = Qwen2ForSequenceClassification(config)
    save_weights(folder, model, torch.bfloat16)


def _write_adapter(folder: Path) -> None:
    import torch
    from safetensors.torch import save_file

    rank, width = 8, 128
    random = torch.Generator().manual_seed(22)
    name = "base_model.model.model.layers.0.self_attn.o_proj.lora_{}.weight"
    matrices = {
        name.format("A"): torch.randn(rank, width, generator=random),
        name.format("B"): torch.randn(width, rank, generator=random),
    }
    save_file(matrices, folder / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "bias": "none",
        "r": rank,
        "lora_alpha": 2 * rank,
        "target_modules": ["o_proj"],
    }
    (folder / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")


def qwen2_config(*, width: int, layers: int, dtype: str, initializer_range: float) -> Any:
    """The configuration of a model with the tiny one's tokenizer, as `transformers` has it."""
    from transformers import Qwen2Config

    return Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=MAX_POSITIONS,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=SPECIAL_TOKENS.index("<|im_end|>"),
        pad_token_id=SPECIAL_TOKENS.index("<|endoftext|>"),
        initializer_range=initializer_range,
        architectures=["Qwen2ForCausalLM"],
        dtype=dtype,
    )


def save_weights(folder: Path, model: Any, dtype: Any) -> None:
    """Write a model's configuration and weights into its folder."""
    from safetensors.torch import save_file

    model.config.save_pretrained(folder)
    # The output layer shares the input layer's weights: they are stored once.
    weights = {
        name: tensor.to(dtype).contiguous()
        for name, tensor in model.state_dict().items()
        if name != "lm_head.weight"
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
