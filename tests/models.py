"""Folders with the small files of a model: a tokenizer trained on a line, a template, a length."""

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers

from gateway.engine_tokenizer import EngineTokenizer

TEMPLATE = """\
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' + (message.content or '') }}
{%- for call in message.tool_calls or [] %}
{{- '<call>' + (call.function.arguments | tojson) }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""
_SPECIAL = ["<|im_start|>", "<|im_end|>", "<s>"]


def make_model(
    folder: Path, *, max_tokens: int | None = 64, template: str | None = TEMPLATE
) -> Path:
    """What a real model's folder holds, but for its weights; each prompt begins with `<s>`."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=_SPECIAL,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["the quick brown fox jumps over the lazy dog " * 3], trainer)
    start = ("<s>", _SPECIAL.index("<s>"))
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[start])
    # As some published ones are; it must not shorten what is counted.
    tokenizer.enable_truncation(5)
    tokenizer.save(str(folder / "tokenizer.json"))
    config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast"}
    if template is not None:
        config["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    if max_tokens is not None:
        (folder / "config.json").write_text(json.dumps({"max_position_embeddings": max_tokens}))
    return folder


def as_its_files_say(source: str, _: str | None) -> EngineTokenizer | None:
    """What the engine tokenizes with, of a folder that `make_model` made: transformers is slow."""
    folder = Path(source)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    text = (folder / "tokenizer.json").read_text()
    return EngineTokenizer(text, {}, config.get("chat_template"))
