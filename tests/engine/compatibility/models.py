"""The models that the lines are for: their files, and the catalog of our engines."""

import json
from pathlib import Path
from typing import Any

from cli.models.minilm import minilm_path
from cli.models.tiny import make_tiny_chat_model, make_tiny_classifier
from cli.models.vision import make_tiny_vision_model
from tests.engine.compatibility.line import ADAPTER, EMBEDDER, JUDGE, SEER, WRITER

POOL = "cpu"
#: Dimensions that the model of embeddings is said to have: its own vectors, or their beginnings.
DIMENSIONS = {"is_matryoshka": True, "matryoshka_dimensions": [8, 64, 384]}
#: Reads what the model that thinks writes between its marks.
REASONING_PARSER = "deepseek_r1"

_SEATS = {"max_num_seqs": 32, "enforce_eager": True}
#: Neither half precision nor the cache may decide between two words.
_EXACT = {**_SEATS, "max_model_len": 1024, "dtype": "float32", "enable_prefix_caching": False}
_TOOLS = {"enable_auto_tool_choice": True, "tool_call_parser": "hermes"}
_MEMORY = {"VLLM_CPU_KVCACHE_SPACE": 1}
_ENVIRONMENT = {**_MEMORY, "TORCH_COMPILE_DISABLE": 1}


def make_models(folder: Path) -> Path:
    """Make the files of all of them in this folder but those of the one that sees; the folder."""
    make_tiny_chat_model(folder / "tiny")
    make_tiny_classifier(folder / "judge")
    _make_adapter(folder / "adapter")
    return folder


def make_vision_model(folder: Path) -> None:
    """Make the files of the one that sees."""
    make_tiny_vision_model(folder / "seer")


def catalog_content(folder: Path, *, idle_seconds: float) -> dict[str, Any]:
    """The catalog; an engine of the model that writes stops after `idle_seconds` without work."""

    def model(source: Path, engine: dict[str, Any], **more: Any) -> dict[str, Any]:
        return {
            "source": str(source),
            "pools": [POOL],
            "engine": engine,
            "env": _ENVIRONMENT,
            **more,
        }

    return {
        "pools": {POOL: {"resources": {"CPU": 1}}},
        "models": {
            WRITER: model(
                folder / "tiny",
                {**_EXACT, **_TOOLS},
                idle_seconds=idle_seconds,
                fronts=2,
                lora={ADAPTER: str(folder / "adapter")},
            ),
            EMBEDDER: model(
                minilm_path(),
                {**_SEATS, "runner": "pooling", "hf_overrides": DIMENSIONS},
                fronts=2,
                env=_MEMORY,
            ),
            JUDGE: model(folder / "judge", _EXACT, tasks=["rerank"]),
            SEER: model(
                folder / "seer", {**_EXACT, **_TOOLS, "reasoning_parser": REASONING_PARSER}
            ),
        },
    }


def _make_adapter(folder: Path) -> None:
    """A LoRA adapter of random weights for the tiny model."""
    import torch
    from safetensors.torch import save_file

    folder.mkdir()
    random = torch.Generator().manual_seed(3)
    name = "base_model.model.model.layers.0.self_attn.o_proj.lora_{}.weight"
    save_file(
        {
            name.format("A"): torch.randn(8, 128, generator=random),
            name.format("B"): torch.randn(128, 8, generator=random),
        },
        folder / "adapter_model.safetensors",
    )
    config = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": ["o_proj"],
              "task_type": "CAUSAL_LM", "bias": "none"}  # fmt: skip
    (folder / "adapter_config.json").write_text(json.dumps(config))
