"""The catalog that `batchyard up` writes if the operator has none."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import yaml

from cli.models.minilm import minilm_path
from cli.models.tiny import make_tiny_adapter, make_tiny_chat_model, make_tiny_classifier
from cli.models.vision import make_tiny_vision_model
from shared.errors import SetupError

CHAT_MODEL = "tiny-chat"
#: The chat model once more, with LoRA, which costs time at each step; and an adapter of it.
ADAPTED_MODEL, ADAPTER = "tiny-chat-lora", "tiny-poet"
RERANK_MODEL = "tiny-reranker"
VISION_MODEL = "tiny-vision"
EMBED_MODEL = "all-MiniLM-L6-v2"
#: The catalog that is made, in the run directory.
CATALOG_FILE = "catalog.yaml"
_CPU_ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "1"}
#: vLLM compiles its sampler in C++ for the first request that samples, which takes half a minute
#: and more. With this model's few words, the compiled sampler is no faster.
_TINY_ENVIRONMENT = {**_CPU_ENVIRONMENT, "TORCH_COMPILE_DISABLE": "1"}

#: Between the words of JSON, random weights would write white space to the end of an answer.
_NO_SPACES = {"backend": "xgrammar", "disable_any_whitespace": True}


def make_catalog(run_dir: Path, models: list[str]) -> Path:
    """A catalog of the demo's models and of `models` (Hugging Face names or local folders).

    The demo starts two of them. The others are there to be tried, and start when they are asked.
    """
    folder = (run_dir / "models").resolve()
    chat = make_tiny_chat_model(folder / CHAT_MODEL)
    entries: dict[str, Any] = {
        CHAT_MODEL: _tiny(chat),
        EMBED_MODEL: {
            "source": str(minilm_path().resolve()),
            "pools": ["local"],
            "live": {},
            "engine": {
                "runner": "pooling",
                "max_num_seqs": 128,
                "enforce_eager": True,
                # Its own type. vLLM would choose float16, in which most CPUs are four times slower.
                **({} if _gpu() else {"dtype": "float32"}),
            },
            "env": _CPU_ENVIRONMENT,
        },
    }
    entries[ADAPTED_MODEL] = {
        **_tiny(chat),
        "lora": {ADAPTER: str(make_tiny_adapter(folder / ADAPTER))},
        "tenant_lora": {},
    }
    reranker = _tiny(make_tiny_classifier(folder / RERANK_MODEL), tasks=["rerank"])
    entries[RERANK_MODEL] = reranker
    entries[VISION_MODEL] = _tiny(make_tiny_vision_model(folder / VISION_MODEL))
    for model in models:
        folder = Path(model).expanduser()
        name = folder.resolve().name if folder.is_dir() else model
        source = str(folder.resolve()) if folder.is_dir() else model
        entries[name] = {"source": source, "pools": ["local"], "live": {}, "env": _CPU_ENVIRONMENT}
        if not _gpu():
            # On a CPU, compiling the model takes longer than it saves.
            entries[name]["engine"] = {"enforce_eager": True}
    pool = {"accelerator_type": _gpu()} if _gpu() else {"resources": {"CPU": 1}}
    path = run_dir / CATALOG_FILE
    path.write_text(yaml.safe_dump({"pools": {"local": pool}, "models": entries}, sort_keys=False))
    return path


def _tiny(source: Path, *, tasks: Sequence[str] = ()) -> dict[str, Any]:
    """The entry of a model that is made here; without tasks, one that chats and calls tools."""
    chatting = {
        "enable_auto_tool_choice": True,
        "tool_call_parser": "hermes",
        "structured_outputs_config": _NO_SPACES,
    }
    return {
        "source": str(source),
        "pools": ["local"],
        **({"tasks": list(tasks)} if tasks else {}),
        "live": {},
        "engine": {
            "max_model_len": 1024,
            "max_num_seqs": 128,
            "enforce_eager": True,
            **({} if tasks else chatting),
        },
        "env": _TINY_ENVIRONMENT,
    }


def require_models(models: Iterable[str]) -> None:
    """Raise SetupError for a local folder that is not there."""
    for model in models:
        if model.startswith((".", "/", "~")) and not Path(model).expanduser().is_dir():
            raise SetupError(f"--model {model}: there is no such folder.")


def _gpu() -> str | None:
    """Ray's name for the machine's GPU; None if there is none."""
    listing = Path("/proc/driver/nvidia/gpus")
    if not listing.is_dir():
        return None
    for information in sorted(listing.glob("*/information")):
        for line in information.read_text().splitlines():
            if line.startswith("Model:"):
                words = line.partition(":")[2].replace("NVIDIA", "").split()
                return next((word for word in words if any(c.isdigit() for c in word)), None)
    return None
