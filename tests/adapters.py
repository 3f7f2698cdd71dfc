"""Files with LoRA adapters for the tiny model, good ones and bad ones."""

import io
import json
import random
import struct
import tarfile
from collections.abc import Mapping
from typing import Any

from shared.adapter_archive import CONFIG, WEIGHTS

RANK = 8
_WIDTH = 128
_TENSOR = "base_model.model.model.layers.0.self_attn.o_proj.lora_{}.weight"
#: As PEFT writes it, with what says nothing of the weights.
PEFT_CONFIG: Mapping[str, Any] = {
    "alpha_pattern": {},
    "base_model_name_or_path": "tiny",
    "bias": "none",
    "inference_mode": True,
    "init_lora_weights": True,
    "lora_alpha": 16,
    "megatron_core": "megatron.core",
    "modules_to_save": None,
    "peft_type": "LORA",
    "r": RANK,
    "target_modules": ["o_proj"],
    "task_type": "CAUSAL_LM",
    "use_dora": False,
}


def an_adapter(*, seed: int = 3, width: int = _WIDTH, name: str = _TENSOR, **config: Any) -> bytes:
    """An adapter of random weights. One of another width does not fit the tiny model."""
    return archive(
        {CONFIG: a_config(**config), WEIGHTS: weights(seed=seed, width=width, name=name)}
    )


def a_config(**changes: Any) -> bytes:
    return json.dumps({**PEFT_CONFIG, **changes}).encode()


def weights(*, seed: int = 3, width: int = _WIDTH, name: str = _TENSOR) -> bytes:
    """Both matrices of one layer, as safetensors."""
    numbers = random.Random(seed)
    length = RANK * width
    shapes = {name.format("A"): [RANK, width], name.format("B"): [width, RANK]}
    header = {
        tensor: {
            "dtype": "F32",
            "shape": shape,
            "data_offsets": [4 * length * at, 4 * length * (at + 1)],
        }
        for at, (tensor, shape) in enumerate(shapes.items())
    }
    text = json.dumps(header).encode()
    values = [numbers.gauss(0, 1) for _ in range(2 * length)]
    return struct.pack("<Q", len(text)) + text + struct.pack(f"<{2 * length}f", *values)


def archive(files: Mapping[str, bytes], *, kind: int = tarfile.PAX_FORMAT) -> bytes:
    """The files as tar keeps them."""
    body = io.BytesIO()
    with tarfile.open(fileobj=body, mode="w", format=kind) as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            # A part of a second, as files have it: Python's tar writes an extended header for it.
            entry.mtime = 1.5
            tar.addfile(entry, io.BytesIO(content))
    return body.getvalue()
