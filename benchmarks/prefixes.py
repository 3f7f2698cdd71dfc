"""What a plan gains by putting rows next to each other that begin alike.

The engine's KV cache holds a part of the prefixes, and its queue a part of the rows. Both sides run
on one fleet, in turns; between them the dispatcher starts again with another setting. Each run has
texts of its own, so that no run finds the beginnings of another one in the cache.
"""

import itertools
import json
import random
import statistics
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from benchmarks.bench_fleet import BenchFleet
from benchmarks.figures import Figure, compared
from benchmarks.rows import CHAT, URLS
from cli.fleet import Fleet, Options
from cli.models.tiny import MAX_POSITIONS, make_tiny_chat_model, qwen2_config, save_weights

_MODEL = "prefill"
_SEATS = 8
#: Tokens of a block of the KV cache, and how many blocks it has: about 12 prefixes.
_BLOCK_TOKENS, _KV_BLOCKS = 128, 112
_PREFIXES, _ROWS_PER_PREFIX = 40, 8
_PREFIX_WORDS, _OWN_WORDS, _OUTPUT_TOKENS = 400, 20, 4
_UNSHARED_WORDS = 60
_SETTING = "BATCHYARD_GROUP_BY_PREFIX"
_WORDS = [
    "batch",
    "engine",
    "prefix",
    "cache",
    "token",
    "window",
    "slice",
    "order",
    "tenant",
    "queue",
    "lane",
    "plan",
    "row",
]
_texts = itertools.count()


def prefixes(*, turns: int) -> list[Figure]:
    """Rows per second with groups against without, where prefixes repeat and where none do."""
    figures = []
    with _prefill_fleet() as fleet:
        cases: dict[str, tuple[Callable[[], list[str]], float]] = {
            f"{_PREFIXES} prefixes x {_ROWS_PER_PREFIX} rows, shuffled": (_shuffled, 1.3),
            "rows that share nothing": (_unshared, 0.97),
        }
        for name, (texts, goal) in cases.items():
            rates: dict[bool, list[float]] = {True: [], False: []}
            for turn in range(turns):
                # Each side is as often the first one.
                for is_grouping in (turn % 2 == 0, turn % 2 == 1):
                    rates[is_grouping].append(_rate(fleet, texts(), is_grouping=is_grouping))
            figures.append(
                compared(
                    f"rows/s in groups / as they come, {name}",
                    statistics.median(rates[True]),
                    statistics.median(rates[False]),
                    unit="rows/s",
                    goal=goal,
                    sense="at least",
                )
            )
            shown = {side: [f"{rate:.1f}" for rate in found] for side, found in rates.items()}
            print(f"{name}: {shown} rows/s", flush=True)
    return figures


def _rate(fleet: BenchFleet, texts: list[str], *, is_grouping: bool) -> float:
    """Rows per second from the batch's creation to its completion."""
    running = fleet.fleet
    running.dispatcher.stop()
    running.dispatchers[:1] = [running.dispatcher.with_environment({_SETTING: str(is_grouping)})]
    running.dispatcher.start()
    # By its end the dispatcher leads, and the engine is warm.
    _seconds(fleet, [_text(_OWN_WORDS) for _ in range(_SEATS)])
    return len(texts) / _seconds(fleet, texts)


def _seconds(fleet: BenchFleet, texts: list[str]) -> float:
    body = b"".join(_line(number, text) for number, text in enumerate(texts))
    file = fleet.client.files.create(file=("rows.jsonl", body), purpose="batch")
    return fleet.seconds(CHAT, file.id)


def _shuffled() -> list[str]:
    """Rows of several prefixes in any order."""
    begins = [_text(_PREFIX_WORDS) for _ in range(_PREFIXES)] * _ROWS_PER_PREFIX
    random.Random(1).shuffle(begins)
    return [f"{begin} {_text(_OWN_WORDS)}" for begin in begins]


def _unshared() -> list[str]:
    return [_text(_UNSHARED_WORDS) for _ in range(_PREFIXES * _ROWS_PER_PREFIX)]


def _text(words: int) -> str:
    """A text that begins like no other one."""
    number = next(_texts)
    return " ".join([str(number), *random.Random(number).choices(_WORDS, k=words)])


def _line(number: int, text: str) -> bytes:
    body: dict[str, Any] = {
        "model": _MODEL,
        "messages": [{"role": "user", "content": text}],
        "max_tokens": _OUTPUT_TOKENS,
        "temperature": 0,
        "ignore_eos": True,
    }
    line = {"custom_id": f"row-{number}", "method": "POST", "url": URLS[CHAT], "body": body}
    return json.dumps(line).encode() + b"\n"


@contextmanager
def _prefill_fleet() -> Iterator[BenchFleet]:
    """A fleet with a model that spends its time on prompts."""
    with tempfile.TemporaryDirectory(prefix="batchyard-prefixes-") as folder:
        catalog = Path(folder) / "prefill.yaml"
        model = _make_model(Path(folder) / "models" / _MODEL)
        catalog.write_text(yaml.safe_dump(_catalog(model)))
        fleet = Fleet(Options(Path(folder), catalog=catalog), report=print)
        try:
            fleet.start()
            yield BenchFleet(fleet)
        finally:
            fleet.stop()


def _catalog(model: Path) -> dict[str, Any]:
    engine = {
        "max_model_len": MAX_POSITIONS,
        "max_num_seqs": _SEATS,
        "block_size": _BLOCK_TOKENS,
        "num_gpu_blocks_override": _KV_BLOCKS,
        "enforce_eager": True,
    }
    environment = {"VLLM_CPU_KVCACHE_SPACE": "1", "TORCH_COMPILE_DISABLE": "1"}
    entry = {
        "source": str(model),
        "pools": ["local"],
        "spare_seats": 0,
        "engine": engine,
        "env": environment,
    }
    return {"pools": {"local": {"resources": {"CPU": 1}}}, "models": {_MODEL: entry}}


def _make_model(folder: Path) -> Path:
    """The demo's chat model, with more weights for each token of a prompt."""
    import torch
    from transformers import Qwen2ForCausalLM

    make_tiny_chat_model(folder)
    config = qwen2_config(width=256, layers=5, initializer_range=0.02, dtype="float32")
    save_weights(folder, Qwen2ForCausalLM(config), torch.float32)
    return folder
