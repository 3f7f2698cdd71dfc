"""A tiny model with random weights that sees: Idefics3, whose images need no torchvision."""

from pathlib import Path
from typing import Any

from cli.models.tiny import MAX_POSITIONS, made, save_weights

#: Changes with the model, so that an old folder is replaced.
_VERSION = "1"

#: An image is made as long as two tiles, and is seen as these, and once more whole in one tile.
_TILE, _PATCH, _TILES = 64, 16, 2
#: A square of so many patches each way is one token.
_MERGE = 2
_TILE_TOKENS = (_TILE // _PATCH // _MERGE) ** 2
_WIDTH = 128
_IMAGE = "<image>"
#: What stands around images, and the marks between which models think, for parsers of reasoning.
_MORE_TOKENS = (
    "<fake_token_around_image>",
    _IMAGE,
    "<global-img>",
    "<end_of_utterance>",
    *(f"<row_{row}_col_{column}>" for row in range(1, 3) for column in range(1, 3)),
    "<think>",
    "</think>",
)
_CHAT_TEMPLATE = """\
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' }}
{%- if message.content is string %}{{- message.content }}
{%- else %}
{%- for part in message.content or [] %}
{%- if part.type == 'image' %}{{- '<image>' }}{%- else %}{{- part.text or '' }}{%- endif %}
{%- endfor %}
{%- endif %}
{{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""


def make_tiny_vision_model(target: Path) -> Path:
    """Make the model in `target` unless it is there; the bytes are the same every time."""
    return made(target, _VERSION, _write)


def _write(folder: Path) -> None:
    import torch
    from transformers import Idefics3ForConditionalGeneration

    tokenizer = _write_processor(folder)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(23)
        model = Idefics3ForConditionalGeneration(_config(tokenizer))
    save_weights(folder, model, torch.bfloat16)


def _write_processor(folder: Path) -> Any:
    """Write how texts and images become tokens; the tokenizer."""
    from transformers import AutoTokenizer, Idefics3Processor
    from transformers.models.idefics3.image_processing_pil_idefics3 import (
        Idefics3ImageProcessorPil,
    )

    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens(list(_MORE_TOKENS), special_tokens=True)
    tokenizer.chat_template = _CHAT_TEMPLATE
    images = Idefics3ImageProcessorPil(
        size={"longest_edge": _TILES * _TILE}, max_image_size={"longest_edge": _TILE}
    )
    Idefics3Processor(images, tokenizer, image_seq_len=_TILE_TOKENS).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return tokenizer


def _config(tokenizer: Any) -> Any:
    from transformers import Idefics3Config

    end, padding = map(tokenizer.convert_tokens_to_ids, ("<|im_end|>", "<|endoftext|>"))
    layers = {"hidden_size": _WIDTH, "intermediate_size": 2 * _WIDTH, "num_attention_heads": 4}
    text = {
        **layers,
        "model_type": "llama",
        "vocab_size": len(tokenizer),
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "max_position_embeddings": MAX_POSITIONS,
        "initializer_range": 0.2,
        "bos_token_id": None,
        "eos_token_id": end,
        "pad_token_id": padding,
        "tie_word_embeddings": True,
    }
    vision = {
        **layers,
        "num_hidden_layers": 1,
        "image_size": _TILE,
        "patch_size": _PATCH,
        "initializer_range": 0.2,
    }
    return Idefics3Config(
        text_config=text,
        vision_config=vision,
        image_token_id=tokenizer.convert_tokens_to_ids(_IMAGE),
        scale_factor=_MERGE,
        tie_word_embeddings=True,
        eos_token_id=end,
        pad_token_id=padding,
        architectures=["Idefics3ForConditionalGeneration"],
        dtype="bfloat16",
    )
