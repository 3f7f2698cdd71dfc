"""Folders of models without weights: shapes of real ones, for `load_format: dummy`. No network."""

import json
import shutil
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from shared.errors import SetupError

SMALL, LARGE, EMBED = "qwen-0.5b", "qwen-7b", "minilm"
MODELS = (SMALL, LARGE, EMBED)
#: In the data of the package mistral-common: a real tokenizer of 131,072 tokens.
_TOKENIZER = "tekken_240911.json"
_VOCABULARY = 131_072
_CHAT_TEMPLATE = (
    "{% for message in messages %}[INST]{{ message.content }}[/INST]{% endfor %}"
    "{% if add_generation_prompt %}{% endif %}"
)
_QWEN: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "max_position_embeddings": 32_768,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000.0,
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": _VOCABULARY,
    "torch_dtype": "bfloat16",
}


def _shape(
    width: int, inner: int, layers: int, heads: int, kv_heads: int, *, ties: bool
) -> dict[str, Any]:
    return {
        "hidden_size": width,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "max_window_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "tie_word_embeddings": ties,
    }


#: By the name of a set of shapes: those of Qwen2.5, and small ones for a processor.
SHAPES: Mapping[str, Mapping[str, dict[str, Any]]] = {
    "real": {
        SMALL: _shape(896, 4864, 24, 14, 2, ties=True),
        LARGE: _shape(3584, 18_944, 28, 28, 4, ties=False),
    },
    "tiny": {
        SMALL: _shape(64, 128, 1, 2, 1, ties=True),
        LARGE: _shape(64, 128, 2, 2, 1, ties=True),
    },
}


def make_models(folder: Path, shapes: str, tokenizer: Path | None) -> dict[str, Path]:
    """The folder of each model, made in `folder` where it is not there yet.

    `tokenizer` is Mistral's file `tekken.json`; None takes it from the package mistral-common.
    Raises SetupError when there is none.
    """
    for name, shape in SHAPES[shapes].items():
        if not (folder / name / "config.json").is_file():
            (folder / name).mkdir(parents=True, exist_ok=True)
            _write_tokenizer(folder / name, folder, tokenizer)
            (folder / name / "config.json").write_text(json.dumps({**_QWEN, **shape}, indent=1))
    if not (folder / EMBED / "config.json").is_file():
        _write_minilm(folder / EMBED)
    return {name: folder / name for name in MODELS}


def _write_tokenizer(target: Path, folder: Path, given: Path | None) -> None:
    # It takes ten seconds to make.
    for other in MODELS[:2]:
        if (folder / other / "tokenizer.json").is_file():
            for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
                shutil.copy(folder / other / name, target)
            return
    from transformers.integrations.mistral.tokenizer import convert_tekken_tokenizer

    source = given or _in_mistral_common()
    if not source.is_file():
        raise SetupError(f"The tokenizer {source} does not exist.")
    convert_tekken_tokenizer(str(source), chat_template=_CHAT_TEMPLATE).save_pretrained(target)


def _in_mistral_common() -> Path:
    # Found, not imported: it needs libraries that vLLM does not.
    spec = find_spec("mistral_common")
    if spec is None or spec.origin is None:
        raise SetupError(
            "The package mistral-common is not installed: give its tokenizer by --tokenizer, or "
            "folders of models by --models."
        )
    return Path(spec.origin).parent / "data" / _TOKENIZER


def _write_minilm(target: Path) -> None:
    from cli.models.minilm import minilm_path

    source = minilm_path()
    target.mkdir(parents=True, exist_ok=True)
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "vocab.txt"):
        shutil.copy(source / name, target)
