"""A lane job that another one replaces, on real Redis and S3 and an engine that never answers."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from dispatcher.finaliser import Finaliser
from shared.catalog import Lane
from shared.catalog_file import load_catalog
from shared.engines import ReplicaNumbers
from shared.ordering.work import Work
from shared.slices import Claim
from shared.state import State
from shared.storage import Storage
from tests.batches import JOB
from tests.eventually import eventually
from tests.integration.dispatcher.conftest import CATALOG, BatchYard, a_planner, lines
from tests.integration.worker.conftest import worker_settings
from tests.servers import S3
from worker.engine_errors import Engine, Results

# Ray warns about itself when it is imported.
pytestmark = pytest.mark.filterwarnings("ignore")

LANE = "m@gpu"
#: How many slices of a large batch run at once: one directly, and one in each of two waves.
_CLAIMED = 3
_ROWS_A_SLICE = 10
_LARGE = _ROWS_A_SLICE * (_CLAIMED + 1)
#: Room for one slice, and for a small batch besides.
_DIRECT_ROWS = 2 * _ROWS_A_SLICE - 1


class _SilentEngine:
    """Never answers."""

    async def run_lines(
        self, lines: Sequence[bytes], order: Sequence[Work]
    ) -> AsyncGenerator[Results, None]:
        await asyncio.Event().wait()
        yield []

    async def withdraw(self, batch_id: str) -> None:
        pass


@dataclass
class FullLaneJob:
    """A lane job that has no room for more slices of its large batch."""

    yard: BatchYard
    batch_id: str
    task: "asyncio.Task[None]"

    async def claimed(self, batch_id: str) -> int:
        return await self.yard.state.claims.inflight(batch_id)


@pytest.fixture
async def job(
    state: State,
    storage: Storage,
    redis_url: str,
    s3: S3,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[FullLaneJob]:
    from worker.job import LaneJob
    from worker.lane_engines import LaneEngines

    class SilentEngines(LaneEngines):
        async def ensure(self, engine: Lane) -> None:
            pass

        async def numbers(self, engine: Lane) -> list[ReplicaNumbers]:
            return []

        def client(self, engine: Lane) -> Engine:
            return _SilentEngine()

        async def run_wave(self, claims: list[Claim], engine: Lane) -> None:
            await asyncio.Event().wait()

    monkeypatch.setattr("worker.job._BEAT_SECONDS", 3600.0)
    (tmp_path / "catalog.yaml").write_text(
        CATALOG.replace("m: {pools: [gpu]}", "m: {pools: [gpu], engine: {max_num_seqs: 3}}")
    )
    catalog = load_catalog(tmp_path / "catalog.yaml")
    yard = BatchYard(
        state,
        storage,
        a_planner(state, storage, catalog, rows=_ROWS_A_SLICE),
        Finaliser(state, storage, output_seconds=3600),
    )
    batch_id = await yard.plan(lines(_LARGE))
    await state.lanes.feed(LANE, [f"{batch_id}:{index}" for index in range(_CLAIMED + 1)])
    await state.lanes.open_job(LANE, "", JOB)
    settings = worker_settings(
        redis_url, s3, tmp_path, direct_rows=_DIRECT_ROWS, claim_seconds=3600
    )
    running = LaneJob(
        state,
        storage,
        settings,
        catalog=catalog,
        lane=catalog.lane_named(LANE),
        job=JOB,
        engines_class=SilentEngines,
    )
    full = FullLaneJob(yard, batch_id, asyncio.create_task(running.run()))

    async def is_full() -> bool:
        return await full.claimed(batch_id) == _CLAIMED

    try:
        await eventually(is_full)
        yield full
    finally:
        # They would end with its process.
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.wait(left)


async def test_one_that_has_no_room_for_more_ends_at_once_when_another_has_its_place(
    job: FullLaneJob,
) -> None:
    # It hears the bell: its beats, which would tell it, too, are hours apart.
    await job.yard.state.lanes.open_job(LANE, JOB, "another")

    await asyncio.wait_for(job.task, timeout=60)


async def test_a_small_batch_starts_although_large_ones_have_all_the_room(
    job: FullLaneJob,
) -> None:
    state = job.yard.state
    small = await job.yard.plan(lines(3))
    # Even behind the large one in the ready list.
    await state.lanes.feed(LANE, [f"{job.batch_id}:{_CLAIMED}", f"{small}:0"])

    async def has_started() -> bool:
        return await job.claimed(small) == 1

    await eventually(has_started)
    assert await job.claimed(job.batch_id) == _CLAIMED


async def test_a_large_batch_starts_beside_the_waves_of_another_and_does_not_take_all(
    job: FullLaneJob,
) -> None:
    state = job.yard.state
    large = await job.yard.plan(lines(_LARGE))
    await state.lanes.feed(LANE, [f"{large}:{index}" for index in range(_CLAIMED + 1)])

    async def has_started() -> bool:
        return await job.claimed(large) > 0

    await eventually(has_started)
    small = await job.yard.plan(lines(3))
    await state.lanes.feed(LANE, [f"{large}:{index}" for index in (1, 2)] + [f"{small}:0"])

    async def small_has_started() -> bool:
        return await job.claimed(small) == 1

    await eventually(small_has_started)
    assert await job.claimed(large) == 1
