"""What is measured with, and how large: everything that a command's options decide."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.gpu.models import EMBED, LARGE, SMALL
from benchmarks.noted_steps import FOLDER_VARIABLE, scheduler_name
from benchmarks.rows import CHAT, EMBEDDINGS

#: More engines of the small models: with more seats, and several on one card.
WIDE, SHARED, EMBEDS = "qwen-0.5b-wide", "qwen-0.5b-shared", "minilm-shared"
#: Of the large model, where there are several cards: one on each, and one over two.
EACH, TENSOR = "qwen-7b-each", "qwen-7b-tensor"
KINDS = {
    SMALL: CHAT, LARGE: CHAT, EMBED: EMBEDDINGS, WIDE: CHAT, SHARED: CHAT, EMBEDS: EMBEDDINGS,
    EACH: CHAT, TENSOR: CHAT,
}  # fmt: skip
#: Where models have front processes.
FRONTS = {SMALL: 4, LARGE: 2, EMBED: 4, WIDE: 4, SHARED: 1, EMBEDS: 2, EACH: 2, TENSOR: 2}
#: What each is one more engine of.
_SOURCES = {
    SMALL: SMALL, WIDE: SMALL, SHARED: SMALL, EMBED: EMBED, EMBEDS: EMBED, LARGE: LARGE,
}  # fmt: skip
_SOURCES_OF_CARDS = {EACH: LARGE, TENSOR: LARGE}
_EMBED_REPLICAS = 4
_GIBIBYTE = 1024**3
#: Of the card, by model: the part that Ray counts, the part that vLLM wants to be free when it
#: starts, and GiB of the KV cache.
_OF_THE_CARD = {
    SMALL: (0.1, 0.04, 2.0),
    WIDE: (0.1, 0.05, 2.5),
    SHARED: (0.05, 0.04, 0.75),
    EMBED: (0.05, 0.02, 0.25),
    EMBEDS: (0.03, 0.02, 0.25),
    LARGE: (0.4, 0.2, 7.0),
    # No two of them fit on one card.
    EACH: (0.55, 0.2, 7.0),
    TENSOR: (1.0, 0.2, 7.0),
}
_SEATS = {WIDE: 1024}


@dataclass(frozen=True)
class Plan:
    """A run of the benchmark."""

    sources: Mapping[str, Path]
    #: Ray's name of the card; None on a machine without one.
    card: str | None
    #: Of all numbers of rows: 1 is for a card.
    scale: float
    #: How often both sides of a ratio are measured.
    turns: int
    #: Replicas that share the card.
    replicas: int
    #: Of the card; 0 if it is not known.
    price_per_hour: float
    cards: int = 1
    #: Models whose engines the cases of this run want from the beginning.
    early: Collection[str] = ()
    #: Where engines note their steps; None if they do not.
    steps: Path | None = None
    #: Further arguments of the engines that write.
    engine: Mapping[str, Any] = field(default_factory=dict)

    def rows(self, count: int) -> int:
        """So many rows at the scale of this run, and enough to be rows at all."""
        return max(16, int(count * self.scale))

    @property
    def embed_replicas(self) -> int:
        """Of the model of embeddings that share the card."""
        return min(self.replicas, _EMBED_REPLICAS)

    def seconds(self, seconds: float) -> float:
        """So long a phase, which shrinks less than the rows."""
        return max(4.0, seconds * math.sqrt(self.scale))

    def catalog(self) -> dict[str, Any]:
        """The catalog of the fleet, which the bare engines read, too."""
        source = _SOURCES | (_SOURCES_OF_CARDS if self.cards > 1 else {})
        names = tuple(source)
        return {
            "pools": {_pool(name): self._pool(name) for name in names},
            "models": {name: self._model(name, self.sources[source[name]]) for name in names},
        }

    def _pool(self, name: str) -> dict[str, Any]:
        if self.card is None:
            return {"resources": {"CPU": 1}}
        # Of the logical cores of its node, of which an engine with fronts would ask for many.
        return {"accelerator_type": self.card, "resources": {"GPU": self._part(name), "CPU": 0.1}}

    def _part(self, name: str) -> float:
        """Of a card: where there are several, one that has others leaves room for the large one."""
        part, memory, _ = _OF_THE_CARD[name]
        return part if self.cards == 1 or name in _SOURCES_OF_CARDS else max(part / 2, memory)

    def _model(self, name: str, source: Path) -> dict[str, Any]:
        entry: dict[str, Any] = {
            "source": str(source.resolve()),
            "pools": [_pool(name)],
            # Nothing stops by itself while it is measured.
            "idle_seconds": 7200,
            "fronts": FRONTS[name] if self.card else 1 + (name == SMALL),
            "engine": self._engine(name),
        }
        if name == LARGE:
            entry["live"] = {}
        if name == EACH:
            # No engine has it beside rows: they leave the one that people have.
            entry["live"] = {"tpot_ms": 4}
        several = {SHARED: self.replicas, EMBEDS: self.embed_replicas, EACH: self.cards}
        if name in several:
            entry["max_replicas"] = several[name]
            # All at once instead of by and by as rows come, and none that only takes room.
            entry["min_replicas"] = several[name] if name in self.early else 0
        if name == TENSOR:
            # It would multicast, which not every machine allows.
            entry["env"] = {"VLLM_ALLREDUCE_USE_SYMM_MEM": "0", "NCCL_NVLS_ENABLE": "0"}
        if self.card is None:
            entry["env"] = {"VLLM_CPU_KVCACHE_SPACE": "1", "TORCH_COMPILE_DISABLE": "1"}
        if self.steps is not None:
            entry["env"] = {**entry.get("env", {}), FOLDER_VARIABLE: str(self.steps)}
            entry["engine"]["scheduler_cls"] = scheduler_name(is_async=self.card is not None)
        return entry

    def _engine(self, name: str) -> dict[str, Any]:
        engine: dict[str, Any] = {"load_format": "dummy"}
        if name == TENSOR:
            engine["tensor_parallel_size"] = 2
        if name in (EMBED, EMBEDS):
            engine["runner"] = "pooling"
        else:
            engine |= {"max_model_len": 2048, **self.engine}
        if name in _SEATS:
            engine["max_num_seqs"] = _SEATS[name]
        if self.card is None:
            seats = 64 if name in _SEATS else 16
            return {**engine, "max_num_seqs": seats, "enforce_eager": True, "dtype": "float32"}
        _, free, cache = _OF_THE_CARD[name]
        return {
            **engine,
            "gpu_memory_utilization": free,
            "kv_cache_memory_bytes": int(cache * _GIBIBYTE),
        }


def _pool(name: str) -> str:
    return name.replace(".", "-")
