"""Batches whose rows were answered before: a lane job ends them without an engine."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from dispatcher.finaliser import Finaliser
from dispatcher.row_cache import CacheLimits, RowCache
from shared.catalog import Lane
from shared.catalog_file import load_catalog
from shared.lifecycle import Status
from shared.state import State
from shared.storage import Storage
from shared.submission.additions import close
from tests.batches import JOB
from tests.eventually import eventually
from tests.integration.cli.yards import Yards
from tests.integration.dispatcher.conftest import CATALOG, BatchYard, a_planner, good, line, lines
from tests.integration.worker.conftest import worker_settings
from tests.servers import S3

# Ray warns about itself when it is imported.
pytestmark = pytest.mark.filterwarnings("ignore")

_LANE = "m@gpu"
_DAY = 86_400
_ROWS, _ROWS_A_SLICE = 9, 3


class Fleet:
    """A lane whose engine must not be asked for, with a batch that has filled the cache."""

    def __init__(
        self, yard: BatchYard, cache: RowCache, folder: Path, redis_url: str, s3: S3
    ) -> None:
        self.yard = yard
        self._cache = cache
        self._settings = worker_settings(redis_url, s3, folder, claim_seconds=3600)
        self._catalog = load_catalog(folder / "catalog.yaml")

    @property
    def has_several_pools(self) -> bool:
        return len(self._catalog.model("m").pools) > 1

    async def plan(self, body: bytes) -> str:
        """A batch over these rows, ready for the lane job."""
        batch_id = await self.yard.plan(body, cache_seconds=_DAY)
        count = len(await self.yard.slices(batch_id))
        members = [f"{batch_id}:{index}" for index in range(count)]
        await self.yard.state.lanes.feed(_LANE, members)
        return batch_id

    async def open(self, body: bytes) -> str:
        """The batch of a pipeline's stage with a cache, and these rows, ready for the lane job."""
        yards = Yards(self.yard, self._catalog)
        batch_id = await yards.open("stage", cache_seconds=_DAY)
        record = await self.yard.state.batches.get(batch_id)
        added = await yards.additions(self._cache).add(record, body)
        count = added.batch.number("slices_total")
        await self.yard.state.lanes.feed(_LANE, [f"{batch_id}:{index}" for index in range(count)])
        return batch_id

    @asynccontextmanager
    async def lane_job(self) -> AsyncIterator[asyncio.Event]:
        """A lane job that runs; the event says that it has wanted its engine."""
        from worker.job import LaneJob
        from worker.lane_engines import LaneEngines

        wanted = asyncio.Event()

        class NoEngines(LaneEngines):
            async def ensure(self, engine: Lane) -> None:
                wanted.set()
                await asyncio.Event().wait()

        await self.yard.state.lanes.open_job(_LANE, "", JOB)
        job = LaneJob(
            self.yard.state,
            self.yard.storage,
            self._settings,
            catalog=self._catalog,
            lane=self._catalog.lane_named(_LANE),
            job=JOB,
            engines_class=NoEngines,
        )
        running = asyncio.create_task(job.run())
        try:
            yield wanted
        finally:
            # They would end with its process.
            left = asyncio.all_tasks() - {asyncio.current_task()}
            for task in {*left, running}:
                task.cancel()
            await asyncio.wait({*left, running})


@pytest.fixture(params=["[gpu]", "[gpu, spare]"])
async def fleet(
    request: pytest.FixtureRequest,
    state: State,
    storage: Storage,
    redis_url: str,
    s3: S3,
    tmp_path: Path,
) -> Fleet:
    text = CATALOG.replace("m: {pools: [gpu]", f"m: {{pools: {request.param}")
    text = text.replace("pools:\n", "pools:\n  spare: {resources: {CPU: 1}}\n", 1)
    (tmp_path / "catalog.yaml").write_text(text)
    catalog = load_catalog(tmp_path / "catalog.yaml")
    cache = RowCache(state, storage, catalog, CacheLimits(_DAY, 1000))
    yard = BatchYard(
        state,
        storage,
        a_planner(state, storage, catalog, rows=_ROWS_A_SLICE, cache=cache),
        Finaliser(state, storage, output_seconds=3600, cache=cache),
    )
    first = await yard.plan(lines(_ROWS), cache_seconds=_DAY)
    await yard.run(first, lambda row: good(f"answer {row}"))
    await yard.finaliser.finish(first)
    return Fleet(yard, cache, tmp_path, redis_url, s3)


async def test_a_batch_that_is_answered_from_the_cache_ends_without_an_engine(
    fleet: Fleet,
) -> None:
    batch_id = await fleet.plan(lines(_ROWS))

    async with fleet.lane_job() as wanted:

        async def has_results() -> bool:
            return (await fleet.yard.state.batches.get(batch_id)).status is Status.FINALIZING

        await eventually(has_results)
        assert not wanted.is_set()

    await fleet.yard.finaliser.finish(batch_id)
    record = await fleet.yard.state.batches.get(batch_id)
    assert record.status is Status.COMPLETED
    assert (record.number("completed"), record.number("cached_rows")) == (_ROWS, _ROWS)
    assert record.number("input_tokens") == 0


async def test_however_many_of_its_rows_wait_for_others_no_engine_is_wanted(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One slice at a time.
    monkeypatch.setattr("worker.lane_load._MAX_ANSWERED_ROWS", _ROWS_A_SLICE)
    batch_id = await fleet.plan(lines(_ROWS))

    async with fleet.lane_job() as wanted:

        async def has_results() -> bool:
            return (await fleet.yard.state.batches.get(batch_id)).status is Status.FINALIZING

        await eventually(has_results)
        assert not wanted.is_set()


async def test_rows_of_a_pipelines_stage_that_were_answered_want_no_engine(fleet: Fleet) -> None:
    batch_id = await fleet.open(lines(_ROWS))
    state = fleet.yard.state

    async with fleet.lane_job() as wanted:

        async def has_results() -> bool:
            return (await state.batches.get(batch_id)).number("completed") == _ROWS

        await eventually(has_results)
        assert not wanted.is_set()

    await close(state, fleet.yard.storage, batch_id)
    await fleet.yard.finaliser.finish(batch_id)
    record = await state.batches.get(batch_id)
    assert record.status is Status.COMPLETED
    assert (record.number("cached_rows"), record.number("input_tokens")) == (_ROWS, 0)


async def test_a_row_that_is_not_in_the_cache_wants_the_engine(fleet: Fleet) -> None:
    if fleet.has_several_pools:
        pytest.skip("Ray says whether one of several engines runs")
    new = line("new", messages=[{"role": "user", "content": "never asked before"}])
    batch_id = await fleet.plan(lines(_ROWS) + new)

    async with fleet.lane_job() as wanted:
        await asyncio.wait_for(wanted.wait(), timeout=60)

        async def has_answers() -> bool:
            record = await fleet.yard.state.batches.get(batch_id)
            return record.number("completed") >= _ROWS - _ROWS_A_SLICE

        await eventually(has_answers, 60)

    assert (await fleet.yard.state.batches.get(batch_id)).status is Status.IN_PROGRESS
