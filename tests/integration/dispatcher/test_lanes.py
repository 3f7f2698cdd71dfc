import asyncio
import secrets
import shlex
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import httpx
import psutil
import pytest
from redis.asyncio import Redis

from cli.fleet.ray import RayNode
from cli.servers import free_port
from dispatcher.cluster import Cluster, JobStatus
from dispatcher.lanes import LaneKeeper
from dispatcher.planning import Started
from shared.catalog import Catalog
from shared.lifecycle import Event, Status
from shared.state import State
from shared.state.claims import SupersededError
from shared.storage import Storage
from shared.tasks import end
from tests.batches import JOB, LANE, claim, in_progress, part
from tests.eventually import eventually
from tests.integration.dispatcher.conftest import (
    RAY_TOKEN,
    BatchYard,
    a_leader,
    a_planner,
    lines,
)

_ATTEMPTS = 2


class Jobs:
    """What the lane's jobs run, and what Ray knows of them."""

    def __init__(self, ray: RayNode, script: Path) -> None:
        self._ray = ray
        self._script = script
        self.entrypoint = f"{shlex.quote(sys.executable)} {script} {{lane}} {{job}}"

    def do(self, code: str) -> None:
        """Let every job that starts from now on run this."""
        self._script.write_text(f"import sys, time\n{code}\n")

    async def submitted(self) -> list[str]:
        """The ids of this test's jobs, as Ray lists them."""
        async with httpx.AsyncClient(timeout=20) as http:
            answer = await http.get(
                f"{self._ray.address}/api/jobs/", headers={"Authorization": f"Bearer {RAY_TOKEN}"}
            )
        mark = str(self._script)
        return [job["submission_id"] for job in answer.json() if mark in job["entrypoint"]]

    async def kill(self, job: str) -> None:
        """As a crash would end it; Ray says that it runs before its process is there."""
        await eventually(lambda: bool(self._processes(job)))
        for process in self._processes(job):
            process.kill()

    def _processes(self, job: str) -> list[psutil.Process]:
        return [
            process
            for process in psutil.process_iter(["cmdline"])
            if (process.info["cmdline"] or [])[1:] == [str(self._script), LANE, job]
        ]


@pytest.fixture
def jobs(ray: RayNode, tmp_path: Path) -> Jobs:
    jobs = Jobs(ray, tmp_path / "job.py")
    jobs.do("time.sleep(600)")
    return jobs


@pytest.fixture
async def keeper(
    state: State, storage: Storage, cluster: Cluster, jobs: Jobs
) -> AsyncIterator[LaneKeeper]:
    yield _keeper(state, storage, cluster, entrypoint=jobs.entrypoint)
    for job in await jobs.submitted():
        await cluster.stop(job)


@pytest.fixture
async def feeder(state: State, storage: Storage) -> AsyncIterator[LaneKeeper]:
    """A keeper of ready lists: there is no Ray where it looks."""
    cluster = Cluster(f"http://127.0.0.1:{free_port()}", "token")
    yield _keeper(state, storage, cluster)
    await cluster.close()


async def test_a_lane_with_work_gets_one_job(
    state: State, keeper: LaneKeeper, cluster: Cluster, jobs: Jobs
) -> None:
    await in_progress(state)

    for _ in range(3):
        await keeper.keep(LANE)

    job = (await state.lanes.job(LANE)).id
    assert await jobs.submitted() == [job]
    await eventually(lambda: _is(cluster, job, JobStatus.RUNNING))


async def test_jobs_that_die_without_progress_are_replaced_a_few_times_and_then_fail_the_lane(
    state: State, keeper: LaneKeeper, jobs: Jobs
) -> None:
    jobs.do("print('no such model'); raise SystemExit(3)")
    batch_id = await in_progress(state)
    await keeper.feed(LANE)
    await keeper.keep(LANE)
    first = (await state.lanes.job(LANE)).id
    assert len(await claim(state, slices=2, job=first)) == 2

    await eventually(lambda: _keeps(keeper, lambda: _is_buried(state, first)))

    # The claims are back, and the next job is not started at once.
    assert await state.claims.inflight(batch_id) == 0
    assert await state.lanes.claimed_count(LANE) == 0
    assert (await state.lanes.job(LANE)).id == ""
    await eventually(lambda: _keeps(keeper, lambda: _has_ended(state, batch_id)))
    record = await state.batches.get(batch_id)
    assert record.status is Status.FAILED
    assert f"ended {_ATTEMPTS} times without a result" in record.fields["first_error"]
    assert "no such model" in record.fields["first_error"]
    shape = record.to_openai()
    assert shape.errors is not None
    assert [problem.code for problem in shape.errors.data] == ["engine_failed"]
    for _ in range(5):
        await keeper.keep(LANE)
    assert len(await jobs.submitted()) == _ATTEMPTS
    assert (await state.lanes.job(LANE)).id == ""


async def test_a_killed_job_with_progress_is_replaced_at_once_and_its_claims_go_back(
    state: State, keeper: LaneKeeper, cluster: Cluster, jobs: Jobs
) -> None:
    batch_id = await in_progress(state, slices=3)
    await keeper.feed(LANE)
    await keeper.keep(LANE)
    first = (await state.lanes.job(LANE)).id
    done, lost = await claim(state, slices=2, job=first)
    await state.claims.commit(done, part(done))
    await eventually(lambda: _is(cluster, first, JobStatus.RUNNING))

    await jobs.kill(first)
    await eventually(lambda: _keeps(keeper, lambda: _has_other_job(state, first)))

    second = (await state.lanes.job(LANE)).id
    assert sorted(await jobs.submitted()) == sorted([first, second])
    again = await claim(state, slices=9, job=second)
    assert [(one.index, one.epoch) for one in again] == [(lost.index, 2), (2, 1)]
    assert (await state.batches.get(batch_id)).status is Status.IN_PROGRESS


async def test_a_job_that_was_opened_and_never_submitted_is_submitted(
    state: State, keeper: LaneKeeper, jobs: Jobs
) -> None:
    await in_progress(state)
    job = f"lane-{secrets.token_hex(4)}"
    await state.lanes.open_job(LANE, "", job)

    await keeper.keep(LANE)

    assert await jobs.submitted() == [job]
    assert (await state.lanes.job(LANE)).id == job


async def test_a_job_that_a_new_cluster_does_not_know_is_replaced(
    state: State, keeper: LaneKeeper, jobs: Jobs
) -> None:
    await in_progress(state)
    await keeper.feed(LANE)
    await claim(state, slices=2, job="lane-of-old")
    await state.lanes.beat(LANE, "lane-of-old", rows_wanted=1)

    await eventually(lambda: _keeps(keeper, lambda: _has_other_job(state, "lane-of-old")))

    assert await jobs.submitted() == [(await state.lanes.job(LANE)).id]
    assert await state.lanes.claimed_count(LANE) == 0


async def test_a_job_that_died_while_its_lane_was_idle_is_forgotten(
    state: State, keeper: LaneKeeper, jobs: Jobs
) -> None:
    jobs.do("pass")
    batch_id = await in_progress(state)
    await keeper.keep(LANE)
    job = (await state.lanes.job(LANE)).id
    await state.apply(batch_id, Event.CANCEL_REQUESTED)

    await eventually(lambda: _keeps(keeper, lambda: _is_buried(state, job)))

    assert job
    assert (await state.lanes.job(LANE)).id == ""


@pytest.mark.parametrize("last_sign", ["opened_at_ms", "beat_at_ms"])
async def test_a_silent_job_is_stopped_and_replaced(
    state: State,
    keeper: LaneKeeper,
    cluster: Cluster,
    redis: "Redis[str]",
    namespace: str,
    last_sign: str,
) -> None:
    await in_progress(state)
    await keeper.keep(LANE)
    job = (await state.lanes.job(LANE)).id
    await eventually(lambda: _is(cluster, job, JobStatus.RUNNING))

    # Opened long ago and never heard of; or heard of soon after, and not since.
    await redis.hset(f"{namespace}lane:{LANE}:job", last_sign, "1795165000000")
    await eventually(lambda: _keeps(keeper, lambda: _has_other_job(state, job)))

    assert await cluster.status(job) is JobStatus.STOPPED


async def test_a_frozen_keeper_that_wakes_does_not_take_the_claims_of_a_later_job(
    state: State, keeper: LaneKeeper, cluster: Cluster, jobs: Jobs
) -> None:
    jobs.do("pass")
    await in_progress(state)
    await keeper.feed(LANE)
    await keeper.keep(LANE)
    old = await state.lanes.job(LANE)
    await eventually(lambda: _is(cluster, old.id, JobStatus.SUCCEEDED))
    await state.lanes.open_job(LANE, old.id, "later")
    held = await claim(state, slices=2, job="later")

    # It had read the job's record before it froze, and buries that job now.
    await keeper._bury(LANE, old)  # noqa: SLF001  # the moment between two awaits

    assert (await state.lanes.job(LANE)).id == "later"
    assert await state.claims.renew(held, lease_seconds=30) == []


async def test_a_failure_that_the_engine_reports_fails_all_batches_of_its_lane(
    state: State, feeder: LaneKeeper
) -> None:
    failing = [await in_progress(state), await in_progress(state, tenant="globex")]
    other = await in_progress(state, lane="other@gpu")
    await state.lanes.fail(LANE, "CUDA out of memory")

    await feeder.keep(LANE)

    for batch_id in failing:
        record = await state.batches.get(batch_id)
        assert record.status is Status.FAILED
        assert record.fields["first_error"] == "CUDA out of memory"
    assert (await state.batches.get(other)).status is Status.IN_PROGRESS
    assert await state.lanes.failure(LANE) is None
    assert await state.lanes.active(LANE) == []


async def test_a_lane_that_failed_gets_another_job_for_its_next_batch(
    state: State, keeper: LaneKeeper, jobs: Jobs
) -> None:
    await in_progress(state)
    await keeper.feed(LANE)
    await keeper.keep(LANE)
    old = (await state.lanes.job(LANE)).id
    [held] = await claim(state, slices=1, job=old)
    assert await state.lanes.fail(LANE, "unknown engine argument", job=old)
    await keeper.keep(LANE)

    # The job knows the catalog as it was, and has to end although it has not failed itself.
    with pytest.raises(SupersededError):
        await state.claims.take(LANE, old, lease_seconds=30, slices=1, rows=1000)
    assert await state.lanes.claimed_count(LANE) == 0
    healed = await in_progress(state)
    await keeper.keep(LANE)

    new = (await state.lanes.job(LANE)).id
    assert sorted(await jobs.submitted()) == sorted([old, new])
    # What the old one finds out by now says nothing of the new one's engine.
    assert not await state.lanes.fail(LANE, "unknown engine argument", job=old)
    assert not await state.claims.release(held, engine_failure="unknown engine argument")
    await keeper.keep(LANE)
    assert (await state.batches.get(healed)).status is Status.IN_PROGRESS


async def test_the_ready_list_is_filled_in_order_up_to_what_the_lane_can_take(
    state: State, feeder: LaneKeeper
) -> None:
    first, second = await in_progress(state, slices=40), await in_progress(state, slices=40)

    await feeder.feed(LANE)

    got = await claim(state, slices=100, rows=10_000)
    # 512 rows in slices of 10. Both batches are smaller than one turn.
    assert [one.batch_id for one in got] == [first] * 40 + [second] * 12
    assert [one.index for one in got] == [*range(40), *range(12)]


async def test_a_later_urgent_batch_goes_ahead_of_what_is_ready(
    state: State, feeder: LaneKeeper
) -> None:
    patient = await in_progress(state, slices=40, expires_at=4_000_000_000)
    await feeder.feed(LANE)
    urgent = await in_progress(state, slices=3, expires_at=1)

    await feeder.feed(LANE)

    got = await claim(state, slices=5)
    assert [one.batch_id for one in got] == [urgent] * 3 + [patient] * 2


async def test_a_batch_whose_priority_is_raised_goes_ahead_at_the_next_feed(
    state: State, feeder: LaneKeeper
) -> None:
    # With the same age, and a deadline far away.
    now, far = int(time.time()), 4_000_000_000
    first, second = [
        await in_progress(state, slices=3, created_at=now, expires_at=far) for _ in range(2)
    ]
    await feeder.feed(LANE)

    await state.controls.amend(second, priority=9)
    await feeder.feed(LANE)

    got = await claim(state, slices=6)
    assert [one.batch_id for one in got] == [second] * 3 + [first] * 3


async def test_a_batch_that_comes_to_hundreds_is_ready_at_once(
    state: State, feeder: LaneKeeper
) -> None:
    for number in range(300):
        await in_progress(state, slices=9, created_at=number + 1, tenant="acme")
    await feeder.feed(LANE)
    # It took so long that the next look at all of them has to wait.
    seconds = 0.0
    for number in range(3):
        other = await in_progress(state, slices=2, created_at=1000 + number, tenant="globex")

        # A look at new ones rests for twice the time that the last one took.
        await asyncio.sleep(2 * seconds)
        began = time.monotonic()
        await feeder.feed(LANE)
        seconds = time.monotonic() - began

        ready = await state.lanes.candidates(LANE, slices_per_batch=1)
        assert [one.index for one in ready if one.is_ready and one.batch_id == other] == [0, 1]


async def test_a_small_batch_is_at_the_head_of_what_is_ready_without_a_look_at_others(
    state: State, feeder: LaneKeeper
) -> None:
    await in_progress(state, slices=40)
    await feeder.feed(LANE)
    small, large, of_several = [
        await in_progress(state, slices=slices, created_at=4_000_000_000) for slices in (1, 1, 2)
    ]

    await feeder.feed_small(Started(of_several, "acme", (LANE,), 2, 3))
    await feeder.feed_small(Started(large, "acme", (LANE,), 1, 1000))
    await feeder.feed_small(Started(small, "acme", (LANE,), 1, 3))

    # Beside the first one.
    assert small in [one.batch_id for one in await claim(state, slices=2)]
    for batch_id in (of_several, large):
        assert not await _is_ready(state, batch_id)


async def test_small_batches_that_come_in_a_crowd_are_put_in_order_first(
    state: State, feeder: LaneKeeper
) -> None:
    crowd = [await in_progress(state, slices=1) for _ in range(9)]

    for batch_id in crowd:
        await feeder.feed_small(Started(batch_id, "acme", (LANE,), 1, 3))

    assert await state.lanes.ready_count(LANE) < len(crowd)
    await feeder.feed(LANE)
    assert await state.lanes.ready_count(LANE) == len(crowd)


async def test_a_small_batch_that_is_planned_waits_for_no_round(
    state: State, storage: Storage, catalog: Catalog, yard: BatchYard
) -> None:
    fed = asyncio.Event()

    class Slow(LaneKeeper):
        async def feed(self, lane: str) -> None:
            fed.set()
            await asyncio.Event().wait()

    cluster = Cluster(f"http://127.0.0.1:{free_port()}", "token")
    keeper = _keeper(state, storage, cluster, class_=Slow)
    leading = asyncio.create_task(
        a_leader(state, storage, a_planner(state, storage, catalog), keeper).lead()
    )
    # The round after its planning never ends.
    batch_id = await yard.submit(lines(3))

    await eventually(lambda: _is_ready(state, batch_id))
    await asyncio.wait_for(fed.wait(), 60)
    await end(leading, patience_seconds=5)
    await cluster.close()


async def test_a_paused_batch_takes_no_room_from_others(state: State, feeder: LaneKeeper) -> None:
    paused = await in_progress(state, slices=100)
    await feeder.feed(LANE)
    await state.controls.pause(paused)
    other = await in_progress(state, slices=60)

    await feeder.feed(LANE)

    got = await claim(state, slices=100, rows=10_000)
    assert [one.batch_id for one in got] == [other] * 52


async def test_a_ready_list_never_holds_more_than_a_hundred_and_stays_in_order(
    state: State, feeder: LaneKeeper
) -> None:
    await state.lanes.open_job(LANE, "", JOB)
    await state.lanes.beat(LANE, JOB, rows_wanted=100_000)
    patient = await in_progress(state, slices=200, expires_at=4_000_000_000)
    await feeder.feed(LANE)
    urgent = await in_progress(state, slices=200, expires_at=1)
    await feeder.feed(LANE)
    ready = await state.lanes.candidates(LANE, slices_per_batch=1)
    assert sum(slice_.is_ready for slice_ in ready) == 100
    running = await claim(state, slices=30)
    assert [one.index for one in running] == list(range(30))

    async def is_full_again() -> bool:
        # A look at the whole list rests for some milliseconds while half of it is left.
        await feeder.feed(LANE)
        return await state.lanes.ready_count(LANE) == 100

    await eventually(is_full_again)

    got = await claim(state, slices=100, rows=10_000)
    assert [(one.batch_id, one.index) for one in got] == [(urgent, n) for n in range(30, 130)]
    assert (await state.lanes.backlog(LANE)).batches == 2
    assert patient in await state.lanes.active(LANE)


async def test_two_keepers_feed_each_slice_once(
    state: State, storage: Storage, feeder: LaneKeeper
) -> None:
    batch_ids = [await in_progress(state, slices=20) for _ in range(4)]
    other = _keeper(state, storage, Cluster("http://127.0.0.1:9", "token"))

    got = []
    for _ in range(6):
        await asyncio.gather(*(keeper.feed(LANE) for keeper in (feeder, other, feeder)))
        got += await claim(state, slices=20)

    assert sorted((one.batch_id, one.index) for one in got) == sorted(
        (batch_id, index) for batch_id in batch_ids for index in range(20)
    )
    assert {one.epoch for one in got} == {1}


async def test_two_keepers_open_one_job(
    state: State, storage: Storage, keeper: LaneKeeper, cluster: Cluster, jobs: Jobs
) -> None:
    await in_progress(state)
    other = _keeper(state, storage, cluster, entrypoint=jobs.entrypoint)

    await asyncio.gather(keeper.keep(LANE), other.keep(LANE))

    assert await jobs.submitted() == [(await state.lanes.job(LANE)).id]


async def test_a_tenants_share_begins_anew_on_an_idle_lane(
    state: State, feeder: LaneKeeper
) -> None:
    batch_id = await in_progress(state, slices=1)
    await feeder.feed(LANE)
    [only] = await claim(state)
    assert await state.lanes.served(LANE) == {"acme": 50}
    await state.claims.commit(only, part(only))
    assert (await state.batches.get(batch_id)).status is Status.FINALIZING

    await feeder.keep(LANE)

    assert await state.lanes.served(LANE) == {}


async def test_a_ray_that_hangs_holds_up_neither_planning_nor_feeding_nor_finishing(
    state: State, storage: Storage, catalog: Catalog, yard: BatchYard
) -> None:
    calls = 0

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal calls
        calls += 1
        await reader.read()
        writer.close()

    async with await asyncio.start_server(hang, "127.0.0.1", 0) as server:
        cluster = Cluster(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", "token")
        leader = a_leader(
            state, storage, a_planner(state, storage, catalog), _keeper(state, storage, cluster)
        )
        leading = asyncio.create_task(leader.lead())
        await yard.submit(lines(3))
        await eventually(lambda: calls > 0)

        later = await yard.submit(lines(3))

        await eventually(lambda: _is_ready(state, later))
        await end(leading, patience_seconds=5)
        await cluster.close()


async def test_a_batch_that_lost_a_part_stops_no_other_and_waits_to_run_again(
    state: State, storage: Storage, catalog: Catalog, yard: BatchYard, feeder: LaneKeeper
) -> None:
    broken, whole = await yard.plan(lines(3)), await yard.plan(lines(3))
    for batch_id in (broken, whole):
        await yard.run(batch_id, lambda row: (200, b"{}"))
    await storage.remove(await storage.keys(f"batches/{broken}/parts/"))

    leader = a_leader(state, storage, a_planner(state, storage, catalog), feeder)
    leading = asyncio.create_task(leader.lead())

    async def is_completed() -> bool:
        return (await state.batches.get(whole)).status is Status.COMPLETED

    async def waits_again() -> bool:
        return (await state.batches.get(broken)).status is Status.IN_PROGRESS

    await eventually(is_completed)
    await eventually(waits_again)
    await end(leading, patience_seconds=5)


def _keeper(
    state: State,
    storage: Storage,
    cluster: Cluster,
    *,
    entrypoint: str = "false {lane} {job}",
    class_: type[LaneKeeper] = LaneKeeper,
) -> LaneKeeper:
    return class_(
        state,
        storage,
        cluster,
        ready_rows=512,
        silence_seconds=60,
        attempts=_ATTEMPTS,
        entrypoint=entrypoint,
    )


async def _keeps(keeper: LaneKeeper, condition: Callable[[], Awaitable[bool]]) -> bool:
    """One round of the keeper, then the condition."""
    await keeper.keep(LANE)
    return await condition()


async def _is(cluster: Cluster, job: str, status: JobStatus) -> bool:
    return await cluster.status(job) is status


async def _is_buried(state: State, job: str) -> bool:
    return (await state.lanes.job(LANE)).id != job


async def _has_other_job(state: State, job: str) -> bool:
    return (await state.lanes.job(LANE)).id not in ("", job)


async def _has_ended(state: State, batch_id: str) -> bool:
    return (await state.batches.get(batch_id)).status is Status.FAILED


async def _is_ready(state: State, batch_id: str) -> bool:
    return any(
        slice_.is_ready and slice_.batch_id == batch_id
        for slice_ in await state.lanes.candidates(LANE, slices_per_batch=1)
    )
