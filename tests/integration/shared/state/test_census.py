import json
import time

import msgspec
from redis.asyncio import Redis

from cli import servers
from shared.engine_starts import Start
from shared.engines import EngineRecord
from shared.lifecycle import Event, Status
from shared.state import State
from shared.state.batches import Told
from tests.batches import LANE, claim, feed, in_progress, part, validating
from tests.fleet_counts import REPLICA


async def test_an_empty_fleet_has_nothing_to_count(state: State) -> None:
    counted = await state.census.take()

    assert {number for number, _ in counted.live.values()} == {0}
    assert set(counted.ended.values()) == {0}
    assert (counted.lanes, counted.next_window_at, counted.webhooks_due_at) == ({}, None, None)


async def test_without_a_bound_of_its_own_redis_may_fill_the_machine(
    own_state: State, redis_server: servers.Redis
) -> None:
    admin: Redis = Redis.from_url(redis_server.url)
    unbound = await own_state.census.take()

    await admin.config_set("maxmemory", 2**30)
    bound = await own_state.census.take()
    await admin.aclose()

    assert 0 < unbound.memory_bytes < unbound.max_memory_bytes
    assert bound.max_memory_bytes == 2**30


async def test_live_batches_are_counted_by_their_status(state: State) -> None:
    await validating(state)
    await in_progress(state)
    await in_progress(state)

    counted = await state.census.take()

    assert counted.live[Status.VALIDATING].number == 1
    assert counted.live[Status.IN_PROGRESS].number == 2
    since = counted.live[Status.VALIDATING].since
    assert since is not None
    assert since <= counted.at


async def test_each_end_of_a_batch_is_counted_once(state: State) -> None:
    batch_id = await in_progress(state)
    await state.apply(batch_id, Event.CANCEL_REQUESTED)
    await state.apply(batch_id, Event.CANCEL_COMMITTED)
    await state.apply(batch_id, Event.CANCEL_COMMITTED)

    counted = await state.census.take()

    assert counted.ended[Status.CANCELLED] == 1
    assert counted.ended[Status.COMPLETED] == 0


async def test_what_is_not_published_is_counted_since_its_oldest(state: State) -> None:
    await in_progress(state)

    waiting = (await state.census.take()).outboxes["events"]

    assert waiting.number == 2
    assert waiting.since is not None


async def test_a_lane_shows_its_batches_and_its_job(state: State) -> None:
    await in_progress(state)
    await state.lanes.open_job(LANE, "", "job-1")
    await state.lanes.beat(LANE, "job-1", rows_wanted=8, rows=21)
    await state.lanes.fail(LANE, "no such model", job="job-1")

    lane = (await state.census.take()).lanes[LANE]

    assert (lane.batches, lane.claimed_slices, lane.rows, lane.has_failed) == (1, 0, 21, True)
    assert lane.job_beat_at > 0


async def test_the_next_window_is_that_of_the_batch_that_closes_first(state: State) -> None:
    await validating(state, expires_at=1_900_000_500)
    await validating(state, expires_at=1_900_000_100)

    assert (await state.census.take()).next_window_at == 1_900_000_100


async def test_what_a_replica_has_counted_is_added_once_however_often_it_is_told(
    state: State,
) -> None:
    now = time.time()
    engine = EngineRecord(lane=LANE, state="running", since=now, seen_at=now)
    await state.engines.look(0, [engine], [], day=0)
    later = msgspec.structs.replace(REPLICA, clock=101.0, live_micros=12, preemptions=4)
    other = msgspec.structs.replace(REPLICA, replica="other")

    for told in ([REPLICA], [REPLICA], [later, other], [REPLICA]):
        await state.engines.count(LANE, told)

    counted = await state.census.take()
    totals = {one.what: one.number for one in counted.totals}
    assert (totals["gpu_live"], totals["preemptions"]) == (12 + 5, 4 + 1)
    assert (totals["prefix_queries"], totals["prefix_hits"]) == (20, 12)
    assert (totals["computed_tokens"], totals["recomputed_tokens"]) == (60, 14)
    assert sorted(counted.replicas[LANE], key=lambda one: one.replica) == [other, later]
    [today] = await state.engines.seconds(int(time.time()) // 86_400)
    assert today.live == 17


async def test_the_last_start_of_an_engine_is_as_the_replica_that_started_last_has_told_it(
    state: State,
) -> None:
    now = time.time()
    engine = EngineRecord(
        lane=LANE, state="running", since=now, seen_at=now, last_start_replica="new"
    )
    silent = msgspec.structs.replace(engine, lane="silent@l4")
    await state.engines.look(0, [engine, silent], [], day=0)
    old = msgspec.structs.replace(REPLICA, replica="old", start=Start({"core": 1.5}))
    new = msgspec.structs.replace(
        REPLICA, replica="new", start=Start({"process": 3.25, "core": 9.5}, 0.75)
    )

    before = (await state.census.take()).starts
    await state.engines.count(LANE, [old, new])
    await state.engines.count("silent@l4", [msgspec.structs.replace(REPLICA, replica="new")])
    after = (await state.census.take()).starts

    assert before == {}
    assert after == {LANE: new.start}


async def test_the_batches_that_have_run_longest_are_shown_one_by_one(state: State) -> None:
    first = await in_progress(state, slices=2)
    await feed(state, first)
    [one] = await claim(state)
    await state.claims.commit(one, part(one, failed=2)._replace(spent="gpu=70"))
    basis = {"pace": "lane", "batches": 0, "start_seconds": 0}
    told = {"finish_at": 10, "finish_p80_at": 20, "rests_on": basis}
    await state.batches.predict([Told(first, json.dumps(told))])
    second = await in_progress(state, tenant="other")
    await validating(state)

    running = (await state.census.take()).running

    assert [(one.id, one.tenant) for one in running] == [(first, "acme"), (second, "other")]
    assert running[0][2:8] == (20, 8, 2, 30, 20, 70)
    assert (running[0].finish_at, running[0].finish_p80_at) == (10, 20)
    assert running[1].finish_at is None
