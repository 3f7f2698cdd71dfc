"""The real vLLM, with a hook in its core process that exits or hangs when it sees a marked prompt.

Takes minutes, because each death costs a start: `pytest -m on_demand tests/engine`.
"""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cli.models.tiny import make_tiny_chat_model
from dispatcher.finaliser import Finaliser
from shared.catalog import Catalog, Lane
from shared.lifecycle import Status
from shared.state import State
from shared.storage import Storage
from tests.answers import answers
from tests.batches import JOB
from tests.engine.conftest import a_ray
from tests.integration.dispatcher.conftest import BatchYard, a_planner
from tests.integration.worker.conftest import worker_settings
from tests.servers import S3

pytest.importorskip("vllm", reason="needs the worker's dependencies")

pytestmark = [
    pytest.mark.on_demand,
    pytest.mark.timeout(1200),
    # Ray and vLLM warn about themselves.
    pytest.mark.filterwarnings("ignore"),
]

_ROOT = Path(__file__).parents[2]
LANE = Lane("tiny", "cpu")
KILL, HANG = "kill the engine", "hang the engine"
#: Much longer than a step of this model, also on a busy machine.
_HANG_SECONDS = 30
_PLANTED = f"""\
import os
import time

from transformers import AutoTokenizer
from vllm.v1.sample.logits_processor import LogitsProcessor


class Planted(LogitsProcessor):
    def __init__(self, vllm_config, device, is_pin_memory):
        self._tokenizer = AutoTokenizer.from_pretrained(vllm_config.model_config.model)

    def apply(self, logits):
        return logits

    def is_argmax_invariant(self):
        return True

    def update_state(self, batch_update):
        for _, _, prompt, _ in batch_update.added if batch_update else ():
            said = self._tokenizer.decode(prompt or [])
            if "{KILL}" in said:
                os._exit(1)
            if "{HANG}" in said:
                time.sleep(100_000)
"""


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Catalog:
    folder = tmp_path_factory.mktemp("planted")
    make_tiny_chat_model(folder / "tiny")
    (folder / "planted.py").write_text(_PLANTED)
    return Catalog.model_validate(
        {
            "pools": {"cpu": {"resources": {"CPU": 1}}},
            "models": {
                "tiny": {
                    "source": str(folder / "tiny"),
                    "pools": ["cpu"],
                    "hang_seconds": _HANG_SECONDS,
                    "engine": {
                        "max_model_len": 512,
                        "max_num_seqs": 32,
                        "enforce_eager": True,
                        "logits_processors": ["planted:Planted"],
                    },
                    "env": {"VLLM_CPU_KVCACHE_SPACE": 1, "PYTHONPATH": f"{folder}:{_ROOT}"},
                },
            },
        }
    )


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    with a_ray(8) as ray:
        yield ray


@pytest.fixture
def yard(state: State, storage: Storage, catalog: Catalog) -> BatchYard:
    planner = a_planner(state, storage, catalog, rows=64)
    return BatchYard(state, storage, planner, Finaliser(state, storage, output_seconds=3600))


async def test_a_row_that_ends_the_engine_is_found_and_the_others_have_results(
    ray: Any, catalog: Catalog, yard: BatchYard, redis_url: str, s3: S3, tmp_path: Path
) -> None:
    from worker.job import LaneJob

    batch_id = await yard.plan(_lines(12, marked={5: KILL}))
    await yard.state.lanes.open_job(LANE.name, "", JOB)
    settings = worker_settings(redis_url, s3, tmp_path)
    job = LaneJob(yard.state, yard.storage, settings, lane=LANE, job=JOB, catalog=catalog)
    running = asyncio.create_task(job.run())
    engines = await _engines_until_the_end(yard.state, batch_id, catalog.app_name(LANE))
    running.cancel()
    await asyncio.wait([running])

    await yard.finaliser.finish(batch_id)

    record = await yard.state.batches.get(batch_id)
    assert record.status is Status.COMPLETED
    output = await yard.parsed(record.fields["output_file_id"])
    [error] = await yard.parsed(record.fields["error_file_id"])
    assert [line["custom_id"] for line in output] == [f"row-{n}" for n in range(12) if n != 5]
    assert error["custom_id"] == "row-5"
    assert error["response"]["body"]["error"]["code"] == "engine_died"
    assert len(engines) == 5
    [dead] = await yard.state.dead_rows.all()
    assert (dead.line, dead.deaths) == (6, 4)
    assert dead.reason.startswith("The engine")


async def test_a_row_that_hangs_the_engine_is_noticed_and_the_engine_killed(
    ray: Any, catalog: Catalog
) -> None:
    from tests.engine.deaths import engine_core
    from worker.engine_client import EngineClient
    from worker.engine_deployment import ensure_engine
    from worker.engine_errors import EngineHungError, EngineUnavailableError

    name = await asyncio.to_thread(ensure_engine, catalog, LANE)
    client = EngineClient(name)
    [(status, _)] = await answers(client, _lines(1, marked={}).splitlines())
    hanging = engine_core(name)

    with pytest.raises(EngineHungError, match="hung"):
        await answers(client, _lines(1, marked={0: HANG}).splitlines())

    results: list[tuple[int, bytes]] = []
    while not results:
        try:
            results = await answers(client, _lines(1, marked={}).splitlines())
        except EngineUnavailableError:
            await asyncio.sleep(0.2)
    assert (status, results[0][0]) == (200, 200)
    assert hanging is not None
    assert not hanging.is_running()
    assert engine_core(name) != hanging


def _lines(rows: int, *, marked: dict[int, str]) -> bytes:
    return b"".join(
        json.dumps(
            {
                "custom_id": f"row-{row}",
                "method": "POST",
                "url": "/v1/chat/completions",
                "body": {
                    "model": "tiny",
                    "messages": [{"role": "user", "content": marked.get(row, f"train {row}")}],
                    "max_tokens": 8,
                },
            }
        ).encode()
        + b"\n"
        for row in range(rows)
    )


async def _engines_until_the_end(state: State, batch_id: str, app_name: str) -> set[int]:
    """The processes that held the model until the batch's rows were done."""
    from tests.engine.deaths import engine_core

    found: set[int] = set()
    while (await state.batches.get(batch_id)).status is Status.IN_PROGRESS:
        candidates = await state.lanes.candidates(LANE.name, slices_per_batch=10)
        await state.lanes.feed(LANE.name, [candidate.member for candidate in candidates])
        if core := await asyncio.to_thread(engine_core, app_name):
            found.add(core.pid)
        await asyncio.sleep(0.2)
    return found
