"""The catalog that `batchyard up` writes if the operator has none."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from cli.models.minilm import minilm_path
from cli.models.tiny import make_tiny_chat_model
from shared.errors import SetupError

CHAT_MODEL = "tiny-chat"
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
    """A catalog of the demo's two models and of `models` (Hugging Face names or local folders)."""
    entries: dict[str, Any] = {
        CHAT_MODEL: {
            "source": str(make_tiny_chat_model(run_dir / "models" / CHAT_MODEL).resolve()),
            "pools": ["local"],
            "live": {},
            "engine": {
                "max_model_len": 1024,
                "max_num_seqs": 128,
                "enforce_eager": True,
                "structured_outputs_config": _NO_SPACES,
            },
            "env": _TINY_ENVIRONMENT,
        },
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
