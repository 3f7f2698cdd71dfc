"""A tiny LLaVA with random weights and the vision tower of Pixtral.

Its pictures need torchvision, and its tower the names that transformers has no more.
"""

from pathlib import Path
from typing import Any

from cli.models.tiny import MAX_POSITIONS, made, save_weights

_PATCH, _LONGEST, _WIDTH = 16, 64, 64
_IMAGE, _BREAK, _END = "[IMG]", "[IMG_BREAK]", "[IMG_END]"
_CHAT_TEMPLATE = """\
{%- for message in messages %}
{%- for part in message.content %}
{%- if part.type == 'image' %}{{- '[IMG]' }}{%- else %}{{- part.text }}{%- endif %}
{%- endfor %}
{%- endfor %}
"""


def make_tiny_llava(target: Path) -> Path:
    """Make the model in `target` unless it is there."""
    return made(target, "1", _write)


def _write(folder: Path) -> None:
    import torch
    from transformers import LlavaForConditionalGeneration

    config = _config(_write_processor(folder))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(25)
        model = LlavaForConditionalGeneration(config)
    save_weights(folder, model, torch.float32)


def _write_processor(folder: Path) -> Any:
    from transformers import AutoTokenizer, PixtralImageProcessor, PixtralProcessor

    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens([_IMAGE, _BREAK, _END], special_tokens=True)
    tokenizer.chat_template = _CHAT_TEMPLATE
    images = PixtralImageProcessor(
        patch_size={"height": _PATCH, "width": _PATCH}, size={"longest_edge": _LONGEST}
    )
    PixtralProcessor(images, tokenizer, patch_size=_PATCH).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return tokenizer


def _config(tokenizer: Any) -> Any:
    from transformers import LlavaConfig

    layers = {
        "hidden_size": _WIDTH,
        "intermediate_size": 2 * _WIDTH,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "initializer_range": 0.2,
    }
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    text = {
        **layers,
        "model_type": "llama",
        "vocab_size": len(tokenizer),
        "num_key_value_heads": 2,
        "max_position_embeddings": MAX_POSITIONS,
        "bos_token_id": None,
        "tie_word_embeddings": True,
        "eos_token_id": end,
    }
    vision = {
        **layers,
        "model_type": "pixtral",
        "image_size": _LONGEST,
        "patch_size": _PATCH,
        "hidden_act": "silu",
    }
    return LlavaConfig(
        text_config=text,
        vision_config=vision,
        image_token_id=tokenizer.convert_tokens_to_ids(_IMAGE),
        tie_word_embeddings=True,
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
        eos_token_id=end,
        architectures=["LlavaForConditionalGeneration"],
        dtype="float32",
    )
