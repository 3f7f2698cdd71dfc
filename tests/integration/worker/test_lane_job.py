"""A lane job that another one replaces, on real Redis and S3 and an engine that never answers."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dispatcher.finaliser import Finaliser
from shared.catalog import Lane
from shared.catalog_file import load_catalog
from shared.engines import ReplicaNumbers
from shared.errors import TransientError
from shared.ordering.work import Work
from shared.slices import Claim
from shared.state import State
from shared.storage import Storage
from tests.batches import JOB, ROWS_A_SLICE, feed, in_progress
from tests.eventually import eventually
from tests.integration.dispatcher.conftest import CATALOG, BatchYard, a_planner, lines
from tests.integration.worker.conftest import worker_settings
from tests.proxy import proxied
from tests.servers import S3
from worker.engine_errors import Engine, Results
from worker.lane_load import LaneLoad

if TYPE_CHECKING:
    from worker.lane_engines import LaneEngines
    from worker.lane_work import LaneWork

# Ray warns about itself when it is imported.
pytestmark = pytest.mark.filterwarnings("ignore")

LANE = "m@gpu"
#: How many slices of a large batch run at once: one directly, and one in a wave. No second wave
#: starts while the first one has not.
_CLAIMED = 2
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


class _QuickEngine:
    """Answers at once."""

    async def run_lines(
        self, lines: Sequence[bytes], order: Sequence[Work]
    ) -> AsyncGenerator[Results, None]:
        yield [(number, (200, b"{}")) for number in range(len(lines))]

    async def withdraw(self, batch_id: str) -> None:
        pass


@dataclass
class Stores:
    """What a lane job needs besides its lane."""

    state: State
    storage: Storage
    redis_url: str
    s3: S3
    folder: Path


@dataclass
class RunningLaneJob:
    """A lane job that has a large batch."""

    yard: BatchYard
    batch_id: str
    task: "asyncio.Task[None]"
    #: The lanes of the engines that were to be there, at each look.
    looked: list[str]
    #: The lanes of the engines that were told of small batches on their way.
    expecting: list[str]

    async def claimed(self, batch_id: str) -> int:
        return await self.yard.state.claims.inflight(batch_id)


def load_of(rows: int, *, direct_rows: int, small_rows: int = 0) -> LaneLoad:
    """That of an engine which computes so many rows at once."""
    return LaneLoad(
        rows_at_once=rows,
        rows_ahead=2 * rows,
        small_rows=small_rows,
        turn_rows=0,
        direct_rows=direct_rows,
        wave_seconds=1,
    )


def lane_work(
    stores: Stores,
    engines_class: "type[LaneEngines]",
    load: LaneLoad,
    *,
    claim_seconds: float = 3600,
    small_batch_rows: int = 0,
    on_end: Callable[[], None] = lambda: None,
) -> "LaneWork":
    """That of a lane job, without the job."""
    from worker.lane_work import LaneWork

    (stores.folder / "catalog.yaml").write_text(CATALOG)
    catalog, lane = load_catalog(stores.folder / "catalog.yaml"), Lane("m", "gpu")
    settings = worker_settings(
        stores.redis_url, stores.s3, stores.folder, claim_seconds=claim_seconds
    )
    return LaneWork(
        stores.state,
        stores.storage,
        settings,
        engines_class(catalog, lane, stores.state, settings, patience_seconds=None),
        load,
        lane=lane,
        job=JOB,
        small_batch_rows=small_batch_rows,
        on_end=on_end,
    )


@pytest.fixture
def stores(
    state: State,
    storage: Storage,
    redis_url: str,
    s3: S3,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Stores:
    # Nothing is noticed because some time has passed.
    monkeypatch.setattr("worker.job._BEAT_SECONDS", 3600.0)
    monkeypatch.setattr("worker.engine_keeper._LOOK_SECONDS", 0.2)
    return Stores(state, storage, redis_url, s3, tmp_path)


@asynccontextmanager
async def running_lane_job(
    stores: Stores,
    engine: Engine,
    *,
    slices: int,
    are_ready: bool = True,
    runner: str = "generate",
) -> AsyncIterator[RunningLaneJob]:
    """One with a batch of so many slices, whose waves never start."""
    from worker.job import LaneJob
    from worker.lane_engines import LaneEngines

    looked: list[str] = []
    expecting: list[str] = []

    class Engines(LaneEngines):
        async def ensure(self, engine: Lane) -> None:
            pass

        async def expect_small(self, engine: Lane) -> None:
            expecting.append(engine.name)

        async def restore(self, engine: Lane) -> bool:
            looked.append(engine.name)
            return False

        async def numbers(self, engine: Lane) -> list[ReplicaNumbers]:
            return []

        def client(self, _: Lane) -> Engine:
            return engine

        async def run_wave(self, claims: list[Claim], engine: Lane) -> None:
            await asyncio.Event().wait()

    state, storage = stores.state, stores.storage
    few_seats = f"m: {{pools: [gpu], engine: {{max_num_seqs: 3, runner: {runner}}}}}"
    (stores.folder / "catalog.yaml").write_text(CATALOG.replace("m: {pools: [gpu]}", few_seats))
    (stores.folder / "plain.yaml").write_text(CATALOG)
    catalog = load_catalog(stores.folder / "catalog.yaml")
    yard = BatchYard(
        state,
        storage,
        # Its rows are the same whatever the model is.
        a_planner(state, storage, load_catalog(stores.folder / "plain.yaml"), rows=_ROWS_A_SLICE),
        Finaliser(state, storage, output_seconds=3600),
    )
    batch_id = await yard.plan(lines(slices * _ROWS_A_SLICE))
    if are_ready:
        await state.lanes.feed(LANE, [f"{batch_id}:{index}" for index in range(slices)])
    await state.lanes.open_job(LANE, "", JOB)
    settings = worker_settings(
        stores.redis_url, stores.s3, stores.folder, direct_rows=_DIRECT_ROWS, claim_seconds=3600
    )
    running = LaneJob(
        state,
        storage,
        settings,
        catalog=catalog,
        lane=catalog.lane_named(LANE),
        job=JOB,
        engines_class=Engines,
    )
    task = asyncio.create_task(running.run())
    try:
        yield RunningLaneJob(yard, batch_id, task, looked, expecting)
    finally:
        # They would end with its process.
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for one in left:
            one.cancel()
        await asyncio.wait([task, *left])


@pytest.fixture
async def job(stores: Stores) -> AsyncIterator[RunningLaneJob]:
    """It has no room for more slices of its large batch."""
    async with running_lane_job(stores, _SilentEngine(), slices=_CLAIMED + 1) as full:

        async def is_full() -> bool:
            return await full.claimed(full.batch_id) == _CLAIMED

        await eventually(is_full)
        yield full


async def test_one_that_has_no_room_for_more_ends_at_once_when_another_has_its_place(
    job: RunningLaneJob,
) -> None:
    # It hears the bell: its beats, which would tell it, too, are hours apart.
    await job.yard.state.lanes.open_job(LANE, JOB, "another")

    await asyncio.wait_for(job.task, timeout=60)


async def test_while_it_has_work_it_looks_whether_its_engine_is_there(
    job: RunningLaneJob,
) -> None:
    await eventually(lambda: len(job.looked) > 1)
    assert set(job.looked) == {LANE}


async def test_a_small_batch_starts_although_large_ones_have_all_the_room(
    job: RunningLaneJob,
) -> None:
    state = job.yard.state
    small = await job.yard.plan(lines(3))
    # Even behind the large one in the ready list.
    await state.lanes.feed(LANE, [f"{job.batch_id}:{_CLAIMED}", f"{small}:0"])

    async def has_started() -> bool:
        return await job.claimed(small) == 1

    await eventually(has_started)
    assert await job.claimed(job.batch_id) == _CLAIMED


async def test_an_engine_of_vectors_is_told_of_a_small_batch_that_comes_while_it_has_rows(
    stores: Stores,
) -> None:
    async with running_lane_job(
        stores, _SilentEngine(), slices=_CLAIMED + 1, are_ready=False, runner="pooling"
    ) as job:
        state = job.yard.state

        async def is_told() -> bool:
            # It may not listen yet.
            await state.ring(f"coming:{LANE}")
            return bool(job.expecting)

        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await eventually(is_told)
        await feed(state, job.batch_id, slices=1)
        await eventually(is_told)
        assert set(job.expecting) == {LANE}


async def test_a_small_batch_starts_while_a_round_takes_its_time(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    from worker.lane_work import LaneWork

    rounds, is_slow = 0, False

    class Slow(LaneWork):
        async def start(self, engine: Lane, rate: float) -> int:
            nonlocal rounds
            rounds += 1
            if is_slow:
                await asyncio.Event().wait()
            return await super().start(engine, rate)

    monkeypatch.setattr("worker.job.LaneWork", Slow)
    async with running_lane_job(stores, _SilentEngine(), slices=_CLAIMED + 1) as job:
        await eventually(lambda: rounds > 1)
        is_slow, before = True, rounds
        await eventually(lambda: rounds > before)
        small, other = await job.yard.plan(lines(3)), await job.yard.plan(lines(_LARGE))
        await feed(job.yard.state, other, slices=1)
        await feed(job.yard.state, small, slices=1)

        async def has_started() -> bool:
            return await job.claimed(small) == 1

        await eventually(has_started)
        assert await job.claimed(other) == 0


async def test_two_that_claim_for_small_batches_take_their_room_once(stores: Stores) -> None:
    from worker.lane_engines import LaneEngines

    class Engines(LaneEngines):
        def client(self, _: Lane) -> Engine:
            return _SilentEngine()

    lane, batches = Lane("m", "gpu"), 4
    for _ in range(batches):
        await feed(stores.state, await in_progress(stores.state, slices=1), slices=1)
    await stores.state.lanes.open_job(LANE, "", JOB)
    load = load_of(1, direct_rows=0, small_rows=ROWS_A_SLICE)
    work = lane_work(stores, Engines, load, small_batch_rows=ROWS_A_SLICE)
    # Suspects run alone.
    work.suspects = 1
    assert await work.start_small(lane) == 0
    work.suspects = 0

    started = await asyncio.gather(*(work.start_small(lane) for _ in range(batches)))

    assert sum(started) == len(load.claims) == 1


async def test_a_large_batch_starts_beside_the_waves_of_another_and_does_not_take_all(
    job: RunningLaneJob,
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


async def test_one_that_finds_nothing_to_run_at_first_runs_what_comes_later(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.job._BEAT_SECONDS", 0.2)
    state = stores.state
    async with running_lane_job(stores, _QuickEngine(), slices=1, are_ready=False) as job:

        async def has_looked() -> bool:
            # It has long looked for work when it beats.
            return (await state.lanes.job(LANE)).beat_at > 0

        await eventually(has_looked)
        await state.lanes.feed(LANE, [f"{job.batch_id}:0"])

        await _until_completed(state, job.batch_id, rows=_ROWS_A_SLICE)


@pytest.mark.parametrize("waves", [0, 2], ids=["no waves", "waves that never start"])
async def test_room_is_filled_as_soon_as_a_slice_has_ended(
    waves: int, stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nothing but the end of a slice says that there is room for the next.
    monkeypatch.setattr("worker.job._POLL_SECONDS", 3600.0)
    monkeypatch.setattr("worker.lane_work._MAX_WAVES", waves)
    slices = 30
    async with running_lane_job(stores, _QuickEngine(), slices=slices) as job:
        await _until_completed(stores.state, job.batch_id, rows=slices * _ROWS_A_SLICE)


async def test_a_batch_has_results_from_its_beginning_on_while_a_wave_starts(
    stores: Stores,
) -> None:
    """Its output file can be begun; half of the wave is left for when it has started."""
    from worker.lane_engines import LaneEngines

    ran: list[int] = []

    class Engine(_QuickEngine):
        async def run_lines(
            self, lines: Sequence[bytes], order: Sequence[Work]
        ) -> AsyncGenerator[Results, None]:
            ran.append(int(json.loads(lines[0])["custom_id"].split("-")[-1]) // _ROWS_A_SLICE)
            yield [(number, (200, b"{}")) for number in range(len(lines))]

    class Engines(LaneEngines):
        def client(self, _: Lane) -> Engine:
            return Engine()

        async def run_wave(self, claims: list[Claim], engine: Lane) -> None:
            await asyncio.Event().wait()

    slices, lane = 12, Lane("m", "gpu")
    (stores.folder / "catalog.yaml").write_text(CATALOG)
    catalog = load_catalog(stores.folder / "catalog.yaml")
    yard = BatchYard(
        stores.state,
        stores.storage,
        a_planner(stores.state, stores.storage, catalog, rows=_ROWS_A_SLICE),
        Finaliser(stores.state, stores.storage, output_seconds=3600),
    )
    batch_id = await yard.plan(lines(slices * _ROWS_A_SLICE))
    await feed(stores.state, batch_id, slices=slices)
    await stores.state.lanes.open_job(LANE, "", JOB)
    ended = asyncio.Event()
    # Four slices run directly, and six of the others are a wave.
    work = lane_work(stores, Engines, load_of(10, direct_rows=20), on_end=ended.set)
    while len(ran) < slices:
        ended.clear()
        # What it has put back is claimed by the next call.
        while await work.start(lane, rate=60.0):
            pass
        await asyncio.wait_for(ended.wait(), timeout=60)

    await _until_completed(stores.state, batch_id, rows=slices * _ROWS_A_SLICE)
    # The wave has 4 to 9.
    assert max(map(ran.index, (4, 5, 6))) < min(map(ran.index, (7, 8, 9)))
    assert sorted(ran) == list(range(slices))


async def test_slices_of_a_wave_that_breaks_while_redis_is_away_run_again(
    stores: Stores, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from worker.lane_engines import LaneEngines

    monkeypatch.setattr("worker.lane_work._PAUSE_SECONDS", 0.0)
    async with proxied(stores.redis_url) as proxy:

        class Engines(LaneEngines):
            async def run_wave(self, claims: list[Claim], engine: Lane) -> None:
                proxy.is_down = True
                proxy.cut()
                raise TransientError("Redis is away.")

        batch_id = await in_progress(stores.state, slices=4)
        await feed(stores.state, batch_id, slices=4)
        await stores.state.lanes.open_job(LANE, "", JOB)
        through = replace(stores, state=State(proxy.url, namespace=namespace))
        ended = asyncio.Event()
        # No room for one that runs directly.
        load = load_of(1, direct_rows=0)
        work = lane_work(through, Engines, load, claim_seconds=1, on_end=ended.set)
        assert await work.start(Lane("m", "gpu"), rate=100.0) == 4
        await ended.wait()
        proxy.is_down = False

        async def are_back() -> bool:
            # As the lane job's beats and the dispatcher do.
            await work.renew_claims()
            await stores.state.claims.reap(LANE)
            return await stores.state.claims.inflight(batch_id) == 0

        await eventually(are_back)
        await through.state.close()


async def _until_completed(state: State, batch_id: str, *, rows: int) -> None:
    async def is_completed() -> bool:
        batch = (await state.batches.get(batch_id)).to_openai()
        return batch.request_counts.completed == rows

    await eventually(is_completed)
