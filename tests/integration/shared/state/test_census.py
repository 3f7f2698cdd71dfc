from redis.asyncio import Redis

from cli import servers
from shared.lifecycle import Event, Status
from shared.state import State
from tests.batches import LANE, in_progress, validating


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
