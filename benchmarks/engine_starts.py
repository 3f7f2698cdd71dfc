"""What an engine's start is made of, and that of its core after SIGKILL, on this machine.

The model is small and has a real tokenizer, of 131,072 tokens: of what does not depend on the card,
this is the part that depends on the model. Seconds of one run; on a machine that others use, only
the shares mean anything.

    python -m benchmarks.engine_starts [--fronts N] [--models FOLDER]
"""

import argparse
import asyncio
import itertools
import json
import tempfile
import time
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from benchmarks.gpu.models import SMALL, make_models
from shared.catalog import Catalog, Lane
from shared.engine_starts import Start
from shared.ordering.work import Work

if TYPE_CHECKING:
    from worker.engine_client import EngineClient

_LANE = Lane(SMALL, "cpu")
#: A row that came before has its answer.
_numbers = itertools.count()
#: What a start may take on a busy machine.
_START_SECONDS = 1200


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--fronts", type=int, default=2, help="processes that tokenize (default: 2)"
    )
    parser.add_argument("--models", type=Path, help="where the model is, or is made")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="batchyard-bench-") as folder:
        models = make_models(options.models or Path(folder), "tiny", None)
        asyncio.run(_measure(_catalog(models[SMALL], options.fronts)))


def _catalog(source: Path, fronts: int) -> Catalog:
    return Catalog.model_validate(
        {
            "pools": {_LANE.pool: {"resources": {"CPU": 1}}},
            "models": {
                _LANE.model: {
                    "source": str(source),
                    "pools": [_LANE.pool],
                    "fronts": fronts,
                    "engine": {
                        "max_model_len": 1024,
                        "max_num_seqs": 16,
                        "load_format": "dummy",
                        "enforce_eager": True,
                        "dtype": "float32",
                    },
                    "env": {"VLLM_CPU_KVCACHE_SPACE": 1, "TORCH_COMPILE_DISABLE": 1},
                }
            },
        }
    )


async def _measure(catalog: Catalog) -> None:
    import ray

    from worker.engine_client import EngineClient
    from worker.engine_deployment import ensure_engine

    ray.init(num_cpus=16, log_to_driver=False, include_dashboard=False)
    try:
        began_at = time.monotonic()
        client = EngineClient(ensure_engine(catalog, _LANE))
        await _row(client)
        _show("start", time.monotonic() - began_at, (await _start(client)).stages)

        [core] = [one for one in _children() if "EngineCore" in " ".join(one.cmdline())]
        began_at = time.monotonic()
        core.kill()
        while not (await _start(client)).restarts:  # noqa: ASYNC110  # it tells nobody
            await asyncio.sleep(0.1)
        await _row(client)
        seconds = time.monotonic() - began_at
        _show("restart", seconds, (await _start(client)).last_restart_stages)
    finally:
        ray.shutdown()


async def _row(client: "EngineClient") -> None:
    """Have one answered: a core that has answered none is not followed by another."""
    body = {"model": _LANE.model, "prompt": "A train", "max_tokens": 1}
    line = json.dumps({"custom_id": "row", "url": "/v1/completions", "body": body}).encode()
    work = Work("batch_starts", next(_numbers), "bench", 0, 0.0, 0.0, 1.0)
    async for [(_, (status, *_))] in client.run_lines([line], [work]):
        assert status == HTTPStatus.OK


async def _start(client: "EngineClient") -> Start:
    async with asyncio.timeout(_START_SECONDS):
        while True:
            # A replica that is busy with a start may not answer.
            for numbers in await client.numbers():
                if numbers.start is not None:
                    return numbers.start
            await asyncio.sleep(0.1)


def _children() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


def _show(what: str, seconds: float, stages: Mapping[str, float]) -> None:
    parts = ", ".join(f"{stage} {taken:.1f}" for stage, taken in stages.items())
    print(f"{what}  {seconds:.1f} s: {parts}", flush=True)


if __name__ == "__main__":
    main()
