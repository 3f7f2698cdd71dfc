"""Small tokenizers that are made like those of the families of models, with their chat templates.

A few hundred tokens instead of 100,000; what comes before the vocabulary is as published.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

_TEXT = [
    "the quick brown fox jumps over the lazy dog 12 345 6789 times, don't they?",
    "Überraschung für alle: naïve café, schöne Grüße; 東京 и Москва, שלום.",
    'def f(x):\n    return {"a": [1, 2], "b": x ** 2}\n\n',
]
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_CHATML = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
    {{- '<tools>' }}{%- for tool in tools %}{{- '\\n' }}{{- tool | tojson }}{%- endfor %}
    {{- '</tools><|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages if message.role != 'system' %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- if message.reasoning_content %}{{- '<think>' + message.reasoning_content }}{%- endif %}
    {{- message.content }}
    {%- for call in message.tool_calls or [] %}{{- call.function | tojson }}{%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>' }}{%- endif %}
{%- endif %}
"""
_HEADERS = """\
{{- bos_token }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
    {{- message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if tools %}{{- tools | tojson(indent=4) }}{%- endif %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""
_INST = """\
{{ bos_token }}{% for message in messages %}{% if message['role'] == 'assistant' %}\
{{ ' ' + message['content'] + eos_token }}{% else %}\
{{ '[INST] ' + message['content'] + ' [/INST]' }}{% endif %}{% endfor %}
"""
_PARTS = """\
{{ bos_token }}
{%- for message in messages -%}
    {{ '<start_of_turn>' + message['role'] + '\\n' }}
    {%- if message['content'] is string -%}{{ message['content'] | trim }}
    {%- else -%}
        {%- for item in message['content'] -%}{{ item['text'] | trim }}{%- endfor -%}
    {%- endif -%}
    {{ '<end_of_turn>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<start_of_turn>model\\n' }}{%- endif -%}
"""


def qwen(folder: Path) -> None:
    """With a tokenizer.json that says less than transformers makes of it: no digit is split."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    _train_bytes(tokenizer, special)
    _write(
        folder,
        tokenizer,
        {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]},
        {"tokenizer_class": "Qwen2Tokenizer", "eos_token": special[2], "pad_token": special[0]},
        _CHATML,
    )


def llama(folder: Path) -> None:
    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_LLAMA3), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    special = [
        "<|begin_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>",
    ]  # fmt: skip
    _train_bytes(tokenizer, special)
    start = processors.TemplateProcessing(
        f"{special[0]} $A", special_tokens=[(special[0], tokenizer.token_to_id(special[0]))]
    )
    tokenizer.post_processor = processors.Sequence(
        [processors.ByteLevel(trim_offsets=False), start]
    )
    _write(
        folder,
        tokenizer,
        {"model_type": "llama", "architectures": ["LlamaForCausalLM"]},
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": special[0],
            "eos_token": special[1],
        },
        _HEADERS,
    )


def mistral(folder: Path) -> None:
    """As Llama 2 and the first Mistrals have it: SentencePiece with bytes for what is unknown."""
    tokenizer = _sentencepiece(["<unk>", "<s>", "</s>"])
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        "<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )
    _write(
        folder,
        tokenizer,
        {"model_type": "mistral", "architectures": ["MistralForCausalLM"]},
        {
            "tokenizer_class": "LlamaTokenizer",
            "bos_token": "<s>",
            "eos_token": "</s>",
            "unk_token": "<unk>",
            "add_bos_token": True,
        },
        _INST,
    )


def gemma(folder: Path) -> None:
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"]
    tokenizer = _sentencepiece(special)
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.post_processor = processors.TemplateProcessing(
        "<bos> $A", special_tokens=[("<bos>", tokenizer.token_to_id("<bos>"))]
    )
    _write(
        folder,
        tokenizer,
        {"model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"]},
        {
            "tokenizer_class": "GemmaTokenizer",
            "bos_token": "<bos>",
            "eos_token": "<eos>",
            "unk_token": "<unk>",
            "pad_token": "<pad>",
        },
        _PARTS,
    )


#: By name; BERT's is in the package of the demo's embedding model.
FAMILIES: dict[str, Callable[[Path], None]] = {
    "qwen": qwen,
    "llama": llama,
    "mistral": mistral,
    "gemma": gemma,
}


def _train_bytes(tokenizer: Tokenizer, special: list[str]) -> None:
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=special,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_TEXT * 3, trainer)


def _sentencepiece(special: list[str]) -> Tokenizer:
    """With its 256 bytes, as the converted ones have them."""
    trained = Tokenizer(models.BPE())
    trained.normalizer = normalizers.Replace(" ", "▁")
    trained.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    trainer = trainers.BpeTrainer(vocab_size=300, show_progress=False)
    trained.train_from_iterator(_TEXT * 3, trainer)
    model = json.loads(trained.to_str())["model"]
    pieces = sorted(model["vocab"], key=model["vocab"].__getitem__)
    names = [*special, *(f"<0x{number:02X}>" for number in range(256)), *pieces]
    vocab = {name: number for number, name in enumerate(dict.fromkeys(names))}
    merges = [tuple(merge) for merge in model["merges"]]
    unknown = "<unk>"
    tokenizer = Tokenizer(
        models.BPE(vocab, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True)
    )
    tokenizer.add_special_tokens([AddedToken(one, normalized=False) for one in special])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return tokenizer


def _write(
    folder: Path, tokenizer: Tokenizer, model: dict[str, Any], config: dict[str, Any], template: str
) -> None:
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": template}))
    sizes = {
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "vocab_size": 1000,
        "max_position_embeddings": 40_000,
    }
    (folder / "config.json").write_text(json.dumps({**sizes, **model}))
