"""Real engines that lose their memory or their machine while a lane job feeds them."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from dispatcher.finaliser import Finaliser
from shared.catalog import Catalog, Lane
from shared.lifecycle import Status
from shared.state import State
from shared.storage import Storage
from tests.batches import JOB
from tests.engine.calls import tiny_catalog
from tests.engine.conftest import a_ray
from tests.engine.machines import ANNEX, a_machine
from tests.eventually import eventually
from tests.integration.dispatcher.conftest import BatchYard, a_planner
from tests.integration.worker.conftest import worker_settings
from tests.servers import S3, absent

pytest.importorskip("vllm", reason="needs the worker's dependencies")

pytestmark = [
    pytest.mark.on_demand,
    pytest.mark.timeout(1200),
    # Ray and vLLM warn about themselves.
    pytest.mark.filterwarnings("ignore"),
]

ROWS = 48
_LANES = {"cpu": Lane("tiny", "cpu"), ANNEX: Lane("tiny", ANNEX)}
_NOTICE_SECONDS = 30.0


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    with a_ray(8) as ray:
        yield ray


@pytest.fixture
def run(
    state: State, storage: Storage, redis_url: str, s3: S3, tmp_path: Path
) -> Callable[[Lane], Any]:
    """Runs a batch on a lane: its engine's application, how many rows are done, and its results."""

    @asynccontextmanager
    async def running(lane: Lane) -> AsyncIterator[tuple[BatchYard, str, Catalog]]:
        from worker.job import LaneJob

        resources = {"CPU": 1.0, **({ANNEX: 1.0} if lane.pool == ANNEX else {})}
        catalog = tiny_catalog(tmp_path, lane, resources, seats=4)
        planner = a_planner(state, storage, catalog, rows=8)
        yard = BatchYard(state, storage, planner, Finaliser(state, storage, output_seconds=3600))
        batch_id = await yard.plan(_lines())
        await state.lanes.open_job(lane.name, "", JOB)
        settings = worker_settings(redis_url, s3, tmp_path, rows_per_engine_call=4)
        job = LaneJob(state, storage, settings, lane=lane, job=JOB, catalog=catalog)
        tasks = [
            asyncio.create_task(job.run()),
            asyncio.create_task(_feed(state, lane)),
        ]
        try:
            yield yard, batch_id, catalog
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    return running


@pytest.mark.parametrize("who", ["itself", "the kernel"])
async def test_an_engine_that_runs_out_of_memory_costs_no_row(
    ray: Any, run: Callable[[Lane], Any], who: str
) -> None:
    from tests.engine.deaths import engine_core

    lane = _LANES["cpu"]
    async with run(lane) as (yard, batch_id, catalog):
        await eventually(lambda: _done(yard, batch_id, ROWS // 4), timeout=400)
        core = await asyncio.to_thread(engine_core, catalog.app_name(lane))
        assert core is not None
        # It gets no page more than it has, as in a container that is full.
        with _starving(core) if who == "itself" else _in_a_full_container(core):
            await eventually(lambda: not core.is_running(), timeout=400)
        await _assert_all_are_answered(yard, batch_id)

    assert await asyncio.to_thread(engine_core, catalog.app_name(lane)) != core


async def test_a_machine_that_is_taken_away_with_notice_costs_no_row(
    ray: Any, run: Callable[[Lane], Any]
) -> None:
    with a_machine(ray) as spot:
        async with run(_LANES[ANNEX]) as (yard, batch_id, _):
            await eventually(lambda: _done(yard, batch_id, ROWS // 4), timeout=400)
            spot.give_notice()
            with a_machine(ray):
                await asyncio.to_thread(spot.end, _NOTICE_SECONDS)
                await _assert_all_are_answered(yard, batch_id)


async def _done(yard: BatchYard, batch_id: str, rows: int) -> bool:
    return (await yard.state.batches.get(batch_id)).number("completed") >= rows


async def _assert_all_are_answered(yard: BatchYard, batch_id: str) -> None:
    async def are_done() -> bool:
        return (await yard.state.batches.get(batch_id)).status is not Status.IN_PROGRESS

    await eventually(are_done, timeout=600)
    await yard.finaliser.finish(batch_id)
    record = await yard.state.batches.get(batch_id)
    assert record.status is Status.COMPLETED
    assert "error_file_id" not in record.fields
    output = await yard.parsed(record.fields["output_file_id"])
    assert [line["custom_id"] for line in output] == [f"row-{row}" for row in range(ROWS)]


@contextmanager
def _starving(process: psutil.Process) -> Iterator[None]:
    """An allocation fails, and the process says so and ends."""
    size = process.memory_info().vms
    process.rlimit(psutil.RLIMIT_AS, (size, size))
    yield


@contextmanager
def _in_a_full_container(process: psutil.Process) -> Iterator[None]:
    """The kernel kills the process when it touches new memory."""
    for root, limit, counts in _MEMORY_GROUPS:
        group = root / f"batchyard-{process.pid}"
        try:
            group.mkdir()
            (group / limit).write_text("65536")
            (group / "cgroup.procs").write_text(str(process.pid))
        except OSError:
            with suppress(OSError):
                group.rmdir()
            continue
        yield
        said = (group / counts).read_text()
        group.rmdir()
        assert re.search(r"^oom_kill [1-9]", said, re.MULTILINE), said
        return
    absent("control group of memory that this test may make", "root")


#: Where groups are made, what limits one, and where it counts its kills: version 1 and 2.
_MEMORY_GROUPS = (
    (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.oom_control"),
    (Path("/sys/fs/cgroup"), "memory.max", "memory.events"),
)


async def _feed(state: State, lane: Lane) -> None:
    """As a dispatcher does."""
    while True:
        candidates = await state.lanes.candidates(lane.name, slices_per_batch=10)
        await state.lanes.feed(lane.name, [candidate.member for candidate in candidates])
        await asyncio.sleep(0.2)


def _lines() -> bytes:
    return b"".join(
        json.dumps(
            {
                "custom_id": f"row-{row}",
                "method": "POST",
                "url": "/v1/chat/completions",
                "body": {
                    "model": "tiny",
                    "messages": [{"role": "user", "content": f"{row} trains " * 60}],
                    "max_tokens": 100,
                    "ignore_eos": True,
                },
            }
        ).encode()
        + b"\n"
        for row in range(ROWS)
    )
