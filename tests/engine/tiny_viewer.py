"""A tiny Qwen2-VL with random weights: it sees pictures and videos."""

from pathlib import Path
from typing import Any

from cli.models.tiny import MAX_POSITIONS, made, save_weights

#: Pixels of a patch each way; two by two of them, and of two frames, are one token.
PATCH, MERGE, FRAMES = 14, 2, 2
#: Pixels each way of the largest picture or frame.
LARGEST = 8 * PATCH
_WIDTH, _HEADS = 128, 4
_START, _END, _IMAGE, _VIDEO = (
    "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>",
)  # fmt: skip
_CHAT_TEMPLATE = """\
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' }}
{%- if message.content is string %}{{- message.content }}
{%- else %}
{%- for part in message.content %}
{%- if part.type == 'image' %}{{- '<|vision_start|><|image_pad|><|vision_end|>' }}
{%- elif part.type == 'video' %}{{- '<|vision_start|><|video_pad|><|vision_end|>' }}
{%- else %}{{- part.text }}{%- endif %}
{%- endfor %}
{%- endif %}
{{- '<|im_end|>\\n' }}
{%- endfor %}
{{- '<|im_start|>assistant\\n' }}
"""


def make_tiny_viewer(target: Path) -> Path:
    """Make the model in `target` unless it is there."""
    return made(target, "1", _write)


def _write(folder: Path) -> None:
    import torch
    from transformers import Qwen2VLForConditionalGeneration

    config = _config(_write_processor(folder))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(26)
        model = Qwen2VLForConditionalGeneration(config)
    save_weights(folder, model, torch.float32)


def _write_processor(folder: Path) -> Any:
    from transformers import (
        AutoTokenizer,
        Qwen2VLImageProcessor,
        Qwen2VLProcessor,
        Qwen2VLVideoProcessor,
    )

    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens([_START, _END, _IMAGE, _VIDEO], special_tokens=True)
    tokenizer.chat_template = _CHAT_TEMPLATE
    patches = {
        "patch_size": PATCH,
        "temporal_patch_size": FRAMES,
        "merge_size": MERGE,
        "size": {"shortest_edge": (2 * PATCH) ** 2, "longest_edge": LARGEST**2},
    }
    images, videos = Qwen2VLImageProcessor(**patches), Qwen2VLVideoProcessor(**patches)
    processor = Qwen2VLProcessor(images, tokenizer, videos, chat_template=_CHAT_TEMPLATE)
    processor.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return tokenizer


def _config(tokenizer: Any) -> Any:
    from transformers import Qwen2VLConfig

    token = tokenizer.convert_tokens_to_ids
    text = {
        "vocab_size": len(tokenizer),
        "hidden_size": _WIDTH,
        "intermediate_size": 2 * _WIDTH,
        "num_hidden_layers": 2,
        "num_attention_heads": _HEADS,
        "num_key_value_heads": 2,
        "max_position_embeddings": MAX_POSITIONS,
        "initializer_range": 0.2,
        "bos_token_id": None,
        "eos_token_id": token("<|im_end|>"),
        "pad_token_id": token("<|endoftext|>"),
        "tie_word_embeddings": True,
        # Half of a head's width, for time, height and width.
        "rope_parameters": {
            "rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [4, 6, 6],
        },
    }  # fmt: skip
    vision = {
        "depth": 1,
        "embed_dim": _WIDTH,
        "hidden_size": _WIDTH,
        "num_heads": _HEADS,
        "mlp_ratio": 2,
        "patch_size": PATCH,
        "spatial_merge_size": MERGE,
        "temporal_patch_size": FRAMES,
        "initializer_range": 0.2,
    }
    return Qwen2VLConfig(
        text_config=text,
        vision_config=vision,
        image_token_id=token(_IMAGE),
        video_token_id=token(_VIDEO),
        vision_start_token_id=token(_START),
        vision_end_token_id=token(_END),
        tie_word_embeddings=True,
        eos_token_id=token("<|im_end|>"),
        architectures=["Qwen2VLForConditionalGeneration"],
        dtype="float32",
    )
