import asyncio

import pytest
from redis.asyncio import Redis

from shared.lifecycle import Event
from shared.state import State
from shared.state import lanes as lanes_module
from tests.batches import JOB, LANE, claim, claimed, feed, in_progress, part, validating


async def test_a_lane_is_known_from_its_first_batch_on(state: State) -> None:
    batch_id = await in_progress(state)

    assert await state.lanes.names() == [LANE]
    assert await state.lanes.active(LANE) == [batch_id]
    assert await state.lanes.active_count(LANE) == 1


async def test_the_oldest_active_batch_comes_first(state: State) -> None:
    young = await in_progress(state, created_at=2)
    old = await in_progress(state, created_at=1)

    assert await state.lanes.active(LANE) == [old, young]


async def test_candidates_are_the_ready_ones_and_the_next_pending_of_each_batch(
    state: State,
) -> None:
    first = await in_progress(state, slices=5, created_at=1, priority=7, tenant="globex")
    second = await in_progress(state, slices=1, created_at=2)
    await state.lanes.feed(LANE, [f"{first}:0"])

    found = await state.lanes.candidates(LANE, slices_per_batch=2)

    assert [(one.batch_id, one.index, one.is_ready) for one in found] == [
        (first, 0, True),
        (first, 1, False),
        (first, 2, False),
        (second, 0, False),
    ]
    assert (found[0].tenant, found[0].priority, found[0].created_at) == ("globex", 7, 1)
    assert (found[0].rows, found[0].tokens) == (10, 50)


async def test_a_batch_waits_until_its_last_slice_is_ready_or_it_ends(state: State) -> None:
    first = await in_progress(state, slices=2)
    second = await in_progress(state, slices=1)
    assert (await state.lanes.backlog(LANE))[0] == 2

    await state.lanes.feed(LANE, [f"{first}:0"])
    assert (await state.lanes.backlog(LANE))[0] == 2
    await state.lanes.feed(LANE, [f"{first}:0", f"{first}:1"])
    assert (await state.lanes.backlog(LANE))[0] == 1
    await state.apply(second, Event.CANCEL_REQUESTED)
    assert (await state.lanes.backlog(LANE))[0] == 0

    await state.apply(first, Event.CANCEL_REQUESTED)
    assert await state.lanes.candidates(LANE, slices_per_batch=9) == []


async def test_what_goes_back_to_a_batch_makes_it_wait_again_unless_it_is_paused(
    state: State,
) -> None:
    batch = await in_progress(state, slices=2)
    await state.lanes.feed(LANE, [f"{batch}:0", f"{batch}:1"])
    assert (await state.lanes.backlog(LANE))[0] == 0

    await state.controls.amend(batch, priority=9)
    assert (await state.lanes.backlog(LANE))[0] == 1
    await state.controls.pause(batch)
    assert (await state.lanes.backlog(LANE))[0] == 0
    await state.controls.resume(batch)
    assert (await state.lanes.backlog(LANE))[0] == 1
    assert len(await state.lanes.candidates(LANE, slices_per_batch=9)) == 2


async def test_a_claimed_or_committed_slice_is_no_candidate(state: State) -> None:
    [first, second] = await claimed(state, slices=2)
    await state.claims.commit(first, part(first))

    assert second.index == 1
    assert await state.lanes.candidates(LANE, slices_per_batch=9) == []


async def test_feeding_makes_pending_slices_ready_in_the_given_order(state: State) -> None:
    first, second = await in_progress(state), await in_progress(state)

    fed = await state.lanes.feed(LANE, [f"{second}:1", f"{first}:0", f"{first}:1"])

    assert fed == 3
    got = await claim(state, slices=9)
    assert [(one.batch_id, one.index) for one in got] == [(second, 1), (first, 0), (first, 1)]


async def test_what_is_returned_from_the_ready_list_waits_again(state: State) -> None:
    batch_id = await in_progress(state, slices=2)
    await feed(state, batch_id, slices=2)
    assert (await state.lanes.backlog(LANE)).batches == 0

    await state.lanes.feed(LANE, [f"{batch_id}:0"], returned=[f"{batch_id}:1", "gone:5"])

    assert (await state.lanes.backlog(LANE)) == (1, batch_id, 1)
    found = await state.lanes.candidates(LANE, slices_per_batch=9)
    assert [(one.index, one.is_ready) for one in found] == [(0, True), (1, False)]


async def test_more_slices_are_read_of_some_batches(state: State) -> None:
    one, _ = await in_progress(state, slices=9), await in_progress(state, slices=9)
    await feed(state, one, slices=2)

    found = await state.lanes.candidates(LANE, slices_per_batch=4, among=[one])

    assert [(slice_.batch_id, slice_.index) for slice_ in found] == [(one, n) for n in range(2, 6)]


async def test_a_candidate_says_what_is_left_of_its_batch_and_when_it_had_its_turn(
    state: State,
) -> None:
    fresh = await in_progress(state, slices=3)
    begun, *_ = await claimed(state, slices=1)
    later = await in_progress(state, slices=3)
    await feed(state, later, slices=2)
    [running] = await claim(state)
    await state.claims.commit(running, part(running))

    found = {one.batch_id: one for one in await state.lanes.candidates(LANE, slices_per_batch=1)}

    assert begun.batch_id not in found
    assert (found[fresh].rows_left, found[fresh].claimed_at) == (30, 0)
    assert found[later].rows_left == 20
    assert found[later].claimed_at > 0


async def test_feeding_again_reorders_what_is_ready(state: State) -> None:
    batch_id = await in_progress(state, slices=3)
    await feed(state, batch_id, slices=3)

    fed = await state.lanes.feed(LANE, [f"{batch_id}:{index}" for index in (2, 0, 1)])

    assert fed == 0
    assert [one.index for one in await claim(state, slices=9)] == [2, 0, 1]


async def test_a_slice_that_was_claimed_meanwhile_is_not_fed_again(state: State) -> None:
    first, second = await claimed(state, slices=2)
    await state.claims.commit(second, part(second))

    fed = await feed(state, first.batch_id)

    assert fed == 0
    assert await claim(state, slices=9) == []


async def test_two_feeders_at_once_make_each_slice_ready_once(state: State) -> None:
    batch_id = await in_progress(state, slices=20)

    fed = await asyncio.gather(*(feed(state, batch_id, slices=20) for _ in range(4)))

    assert sum(fed) == 20
    assert len(await claim(state, slices=99)) == 20


async def test_feeding_an_ended_batch_gives_nothing_to_claim(state: State) -> None:
    batch_id = await in_progress(state)
    await state.apply(batch_id, Event.CANCEL_REQUESTED)

    await feed(state, batch_id)

    assert await claim(state, slices=9) == []
    assert await state.lanes.candidates(LANE, slices_per_batch=9) == []


async def test_a_lane_without_a_job_has_one_without_a_name(state: State) -> None:
    job = await state.lanes.job(LANE)

    assert job.id == ""
    assert (job.opened_at, job.beat_at, job.rows_wanted) == (0, 0, 0)


async def test_one_of_many_openers_opens_the_lanes_job(state: State) -> None:
    wanted = [f"job-{number}" for number in range(8)]

    got = await asyncio.gather(*(state.lanes.open_job(LANE, "", job) for job in wanted))

    assert len(set(got)) == 1
    assert (await state.lanes.job(LANE)).id == got[0]


async def test_a_repeated_opening_answers_the_same(state: State) -> None:
    first = await state.lanes.open_job(LANE, "", JOB)
    opened_at = (await state.lanes.job(LANE)).opened_at

    again = await state.lanes.open_job(LANE, "", JOB)

    assert (first, again) == (JOB, JOB)
    assert (await state.lanes.job(LANE)).opened_at == opened_at


async def test_a_job_is_replaced_only_by_one_who_knows_it(state: State) -> None:
    await state.lanes.open_job(LANE, "", "job-1")

    assert await state.lanes.open_job(LANE, "job-0", "job-2") == "job-1"
    assert await state.lanes.open_job(LANE, "job-1", "job-2") == "job-2"


async def test_a_new_job_starts_with_counters_at_zero(state: State) -> None:
    [only] = await claimed(state, slices=1)
    await state.claims.commit(only, part(only))
    await state.lanes.beat(LANE, JOB, rows_wanted=64, executions=2)
    before = await state.lanes.job(LANE)

    await state.lanes.open_job(LANE, JOB, "job-2")

    after = await state.lanes.job(LANE)
    assert (before.rows, before.executions) == (10, 2)
    assert before.beat_at >= before.opened_at > 0
    assert (after.rows, after.executions, after.beat_at) == (0, 0, 0)


async def test_a_beat_records_the_wanted_rows_and_rings_when_they_change(state: State) -> None:
    await state.lanes.open_job(LANE, "", JOB)

    async with state.bells("dispatcher") as bells:
        assert await state.lanes.beat(LANE, JOB, rows_wanted=64)
        assert await bells.wait(5)
        assert await state.lanes.beat(LANE, JOB, rows_wanted=64)
        assert not await bells.wait(0.2)

    assert (await state.lanes.job(LANE)).rows_wanted == 64


async def test_a_superseded_jobs_beat_is_refused(state: State) -> None:
    await state.lanes.open_job(LANE, "", "job-2")

    assert not await state.lanes.beat(LANE, JOB, rows_wanted=64)
    assert (await state.lanes.job(LANE)).rows_wanted == 0


async def test_an_idle_job_may_close(state: State) -> None:
    await state.lanes.open_job(LANE, "", JOB)

    assert await state.lanes.close_job(LANE, JOB)
    assert await state.lanes.close_job(LANE, JOB)
    assert (await state.lanes.job(LANE)).id == ""


async def test_a_job_may_not_close_while_a_batch_runs(state: State) -> None:
    await in_progress(state)
    await state.lanes.open_job(LANE, "", JOB)

    assert not await state.lanes.close_job(LANE, JOB)


async def test_a_job_may_not_close_while_a_slice_is_claimed(state: State) -> None:
    [only] = await claimed(state, slices=1)
    await state.apply(only.batch_id, Event.CANCEL_REQUESTED)

    assert not await state.lanes.close_job(LANE, JOB)
    await state.claims.release(only)
    assert await state.lanes.close_job(LANE, JOB)


async def test_a_superseded_job_closes_without_touching_its_successor(state: State) -> None:
    await state.lanes.open_job(LANE, "", "job-2")

    assert await state.lanes.close_job(LANE, JOB)
    assert (await state.lanes.job(LANE)).id == "job-2"


async def test_a_lanes_failure_stays_until_it_is_dealt_with(state: State) -> None:
    async with state.bells("dispatcher") as bells:
        await state.lanes.fail(LANE, "no such model")
        assert await bells.wait(5)

    assert await state.lanes.failure(LANE) == "no such model"
    await state.lanes.clear_failure(LANE)
    assert await state.lanes.failure(LANE) is None


async def test_rows_ahead_are_those_of_running_batches_without_a_result(state: State) -> None:
    [claim, _] = await claimed(state, slices=2)
    await state.claims.commit(claim, part(claim, failed=3))
    await in_progress(state, slices=3)
    await in_progress(state, slices=4, lane="other@gpu")
    await validating(state)

    others = await in_progress(state, slices=2, tenant="other")

    assert (await state.batches.get(others)).tenant == "other"
    assert (10 + 30, 20) == await state.lanes.rows_ahead(LANE, tenant="acme")
    assert (0, 0) == await state.lanes.rows_ahead("nobody@gpu", tenant="acme")


async def test_nobody_is_hidden_behind_what_another_tenant_has_waiting(
    state: State, few_at_once: None
) -> None:
    for number in range(20):
        await in_progress(state, slices=1, created_at=number, expires_at=10_000_000_000)
    lone = await in_progress(
        state, slices=1, created_at=99, expires_at=10_000_000_000, tenant="globex"
    )

    found = await state.lanes.candidates(LANE, slices_per_batch=2)

    assert lone in {one.batch_id for one in found}
    assert len(found) < 21


async def test_neither_is_what_its_own_tenant_wants_first(state: State, few_at_once: None) -> None:
    for number in range(20):
        await in_progress(state, slices=1, created_at=number, expires_at=10_000_000_000)
    changed = await in_progress(state, slices=1, created_at=98, expires_at=10_000_000_000)
    wanted = await in_progress(
        state, slices=1, created_at=99, expires_at=10_000_000_000, priority=9
    )
    await state.controls.amend(changed, priority=8)

    found = await state.lanes.candidates(LANE, slices_per_batch=2)

    assert {wanted, changed} <= {one.batch_id for one in found}


async def test_neither_is_what_has_to_end_soon(state: State, few_at_once: None) -> None:
    for number in range(20):
        await in_progress(state, slices=1, created_at=number, expires_at=10_000_000_000)
    hurried = await in_progress(state, slices=1, created_at=99, expires_at=9_000_000_000)
    elsewhere = await in_progress(state, slices=1, expires_at=8_000_000_000, lane="m@other")

    found = {one.batch_id for one in await state.lanes.candidates(LANE, slices_per_batch=2)}

    assert hurried in found
    assert elsewhere not in found


async def test_of_what_waited_of_a_tenant_nothing_is_left_once_it_does_not_wait(
    state: State, redis: "Redis[str]", namespace: str
) -> None:
    ready, paused, ended = [await in_progress(state, slices=1) for _ in range(3)]
    tenants = f"{namespace}lane:{LANE}:tenants"
    waiting = f"{namespace}lane:{LANE}:waiting:acme"
    assert await redis.smembers(tenants) == {"acme"}
    assert sorted(await redis.zrange(waiting, 0, -1)) == sorted([ready, paused, ended])

    await feed(state, ready, slices=1)
    await state.controls.pause(paused)
    await state.apply(ended, Event.CANCEL_REQUESTED)

    assert not await redis.exists(tenants, waiting)


@pytest.fixture
def few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as are looked at together are soon too many."""
    for name, number in {"_BATCHES": 8, "_CLOSING": 4, "_OLDEST": 2}.items():
        monkeypatch.setattr(lanes_module, name, number)
