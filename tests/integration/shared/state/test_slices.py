import asyncio
import dataclasses
import json
from typing import Any

import pytest
from redis.asyncio import Redis

from shared.errors import NotFoundError
from shared.lifecycle import Event, Status
from shared.slices import ReleaseReason, Slice, Stop, StrikeRange
from shared.state import State
from shared.state.claims import SupersededError
from tests.batches import (
    JOB,
    LANE,
    ROWS_A_SLICE,
    accept_input,
    claim,
    claim_suspects,
    claimed,
    contents,
    dead_row,
    feed,
    in_progress,
    in_status,
    new_slice,
    part,
    validating,
)


async def test_a_plan_is_read_back_in_order(state: State) -> None:
    batch_id = await validating(state)
    slices = [new_slice(index) for index in range(12)]

    await state.slices.plan(batch_id, "p", 0, slices[:7])
    await state.slices.plan(batch_id, "p", 7, slices[7:])

    assert await state.slices.planned(batch_id, "p") == slices


async def test_slices_come_in_pages_each_with_its_part(
    state: State, redis: Redis, namespace: str
) -> None:
    batch_id = await in_progress(state, slices=250)
    await feed(state, batch_id, slices=3)
    last = (await claim(state, slices=3))[-1]
    await state.claims.commit(last, part(last))

    pages = [page async for page in state.slices.pages(batch_id, "p")]
    rest = [row async for page in state.slices.pages(batch_id, "p", first=249) for row in page]

    rows = [row for page in pages for row in page]
    assert [100, 100, 50] == [len(page) for page in pages]
    assert [(index, new_slice(index)) for index in range(250)] == [
        (row.index, row.slice) for row in rows
    ]
    assert [(2, part(last))] == [(row.index, row.part) for row in rows if row.part is not None]
    assert rows[249:] == rest
    assert [] == [page async for page in state.slices.pages(batch_id, "none")]


async def test_a_plan_that_was_never_accepted_disappears(
    state: State, redis: Redis, namespace: str
) -> None:
    batch_id = await validating(state)
    await state.slices.plan(batch_id, "lost", 0, [new_slice(0)])

    await accept_input(state, batch_id)

    assert await redis.ttl(f"{namespace}plan:{batch_id}:lost") > 0
    assert await redis.ttl(f"{namespace}pending:{batch_id}:lost") > 0
    assert await redis.ttl(f"{namespace}plan:{batch_id}:p") == -1
    assert await redis.ttl(f"{namespace}pending:{batch_id}:p") == -1


async def test_of_two_planners_one_plan_wins(state: State) -> None:
    batch_id = await validating(state)
    await state.slices.plan(batch_id, "a", 0, [new_slice(0)])
    await state.slices.plan(batch_id, "b", 0, [new_slice(0), new_slice(1)])

    outcomes = await asyncio.gather(
        *(
            state.apply(batch_id, Event.INPUT_ACCEPTED, {"plan": name, "lane": LANE})
            for name in ("a", "b")
        )
    )

    winner = (await state.batches.get(batch_id)).fields["plan"]
    assert sorted(outcomes) == [False, True]
    assert winner == ("a" if outcomes[0] else "b")
    [only] = await state.lanes.candidates(LANE, slices_per_batch=1)
    assert only.batch_id == batch_id


async def test_a_claim_carries_all_that_a_run_needs(state: State) -> None:
    [got] = await claimed(state, slices=1)

    assert got.slice == Slice(0, 100, 0, 10, 50)
    assert (got.epoch, got.strikes) == (1, 0)
    assert (got.bucket, got.key, got.etag) == ("inputs", f"files/{got.batch_id}", "e")
    assert (got.endpoint, got.tenant) == ("/v1/chat/completions", "acme")
    assert await state.claims.inflight(got.batch_id) == 1
    assert await state.lanes.claimed_count(LANE) == 1


async def test_the_most_urgent_are_claimed_first(state: State) -> None:
    late, early = await in_progress(state), await in_progress(state)
    await feed(state, early, late)

    got = await claim(state, slices=3)

    assert [(one.batch_id, one.index) for one in got] == [(early, 0), (early, 1), (late, 0)]


async def test_the_claim_after_which_a_batch_has_nothing_left_to_claim_says_so(
    state: State,
) -> None:
    batch_id = await in_progress(state, slices=3)
    await feed(state, batch_id, slices=3)

    first, second = await claim(state, slices=2)
    await state.claims.commit(first, part(first))
    [third] = await claim(state)
    assert [one.is_last for one in (first, second, third)] == [False, False, True]

    # It is the last again when it comes back, but not while another one is back as well.
    await state.claims.release(third)
    await state.claims.release(second)
    claims = await claim(state, slices=2)
    assert [one.is_last for one in claims] == [False, True]


async def test_a_claim_never_has_more_rows_than_asked_for(state: State) -> None:
    batch_id = await in_progress(state, slices=5)
    await feed(state, batch_id, slices=5)

    got = await claim(state, slices=5, rows=29)

    assert [one.slice.rows for one in got] == [10, 10]


async def test_nothing_ready_is_no_claim(state: State) -> None:
    assert await claim(state) == []


async def test_no_slice_is_claimed_twice_by_many_at_once(state: State) -> None:
    batch_id = await in_progress(state, slices=40)
    await feed(state, batch_id, slices=40)
    await claim(state, slices=0)

    got = await asyncio.gather(*(claim(state, slices=5) for _ in range(10)))

    indexes = [one.index for some in got for one in some]
    assert sorted(indexes) == list(range(40))


async def test_slices_of_ended_batches_do_not_hide_those_of_live_ones(state: State) -> None:
    ended, live = await in_progress(state, slices=50), await in_progress(state, slices=1)
    await feed(state, ended, slices=50)
    await feed(state, live, slices=1)
    await state.apply(ended, Event.CANCEL_REQUESTED)

    got = await claim(state, slices=1)

    assert [one.batch_id for one in got] == [live]


async def test_a_superseded_job_gets_no_claims(state: State) -> None:
    batch_id = await in_progress(state)
    await feed(state, batch_id)
    await state.lanes.open_job(LANE, "", "job-2")

    with pytest.raises(SupersededError):
        await state.claims.take(LANE, JOB, lease_seconds=30, slices=1, rows=1000)


async def test_claims_are_of_batches_of_the_sizes_asked_for_in_the_order_of_the_list(
    state: State,
) -> None:
    large, small, other = [await in_progress(state, slices=n) for n in (4, 1, 3)]
    sizes = {large: 4, small: 1, other: 3}
    ready = [f"{id_}:{index}" for id_, count in sizes.items() for index in range(count)]
    await state.lanes.feed(LANE, ready)
    await state.lanes.open_job(LANE, "", JOB)

    async def take(**wanted: Any) -> list[tuple[str, int]]:
        got = await state.claims.take(LANE, JOB, lease_seconds=30, slices=2, rows=1000, **wanted)
        return [(one.batch_id, one.index) for one in got]

    assert await take(max_batch_rows=10) == [(small, 0)]
    assert await take(min_batch_rows=31) == [(large, 0), (large, 1)]
    assert await take(passing_over=[large]) == [(other, 0), (other, 1)]
    # 30 rows are ready, and 10 of batches that are asked for.
    assert await take(min_rows=11, passing_over=[large]) == []
    assert await take(min_rows=20, min_batch_rows=11) == [(large, 2), (large, 3)]
    assert await take() == [(other, 2)]


async def test_claimed_tokens_count_for_the_tenants_share(state: State) -> None:
    await claimed(state, slices=2)
    await claimed(state, slices=1, tenant="globex")

    assert await state.lanes.served(LANE) == {"acme": 100, "globex": 50}
    await state.lanes.forget_served(LANE)
    assert await state.lanes.served(LANE) == {}


async def test_a_commit_charges_what_the_engine_computed_instead_of_the_prediction(
    state: State,
) -> None:
    first, _ = await claimed(state, slices=2)

    await state.claims.commit(first, part(first))

    # Ten rows of 3 tokens in, of which 1 was cached, and 2 out; the other slice as predicted.
    assert await state.lanes.served(LANE) == {"acme": 40 + 50}
    assert (await state.lanes.job(LANE)).tokens == 50


async def test_a_slice_that_goes_back_unrun_costs_nothing(state: State) -> None:
    first, second = await claimed(state, slices=2)

    await state.claims.release(first)
    await state.claims.release(first)
    await state.claims.reap(LANE, all_claims=True)

    assert await state.lanes.served(LANE) == {"acme": 0}
    await state.claims.commit(second, part(second))
    assert await state.lanes.served(LANE) == {"acme": 40}


async def test_tokens_count_less_for_a_tenant_with_a_larger_weight(state: State) -> None:
    await state.lanes.set_weights({"globex": 9.0})
    await state.lanes.set_weights({"acme": 4.0})

    await claimed(state, slices=2)
    await claimed(state, slices=2, tenant="globex")

    assert await state.lanes.served(LANE) == {"acme": 25, "globex": 100}


async def test_a_tenant_that_comes_back_is_owed_nothing_for_the_time_without(
    state: State,
) -> None:
    for slice_ in await claimed(state, slices=2):
        await state.claims.commit(slice_, part(slice_))
    busy = await in_progress(state, slices=2)
    await feed(state, busy, slices=1)
    [running] = await claim(state)

    await in_progress(state, tenant="globex")
    await in_progress(state, tenant="initech")

    # What acme has claimed is computed while the others wait.
    assert await state.lanes.served(LANE) == {"acme": 80 + 50, "globex": 80, "initech": 80}
    await state.claims.release(running)
    await in_progress(state, tenant="umbrella")
    assert (await state.lanes.served(LANE))["umbrella"] == 80


async def test_a_tenant_that_comes_while_nobody_waits_starts_where_the_last_one_stood(
    state: State,
) -> None:
    first, _ = await claimed(state, slices=2)
    await state.claims.commit(first, part(first))

    await in_progress(state, tenant="globex")

    assert await state.lanes.served(LANE) == {"acme": 40 + 50, "globex": 40}


async def test_a_commit_records_the_part_and_counts_its_rows(state: State) -> None:
    first, _ = await claimed(state, slices=2)

    outcome = await state.claims.commit(first, part(first, failed=3))

    record = await state.batches.get(first.batch_id)
    shape = record.to_openai()
    assert outcome == "ok"
    assert record.status is Status.IN_PROGRESS
    assert shape.request_counts.model_dump() == {"total": 20, "completed": 7, "failed": 3}
    assert (shape.usage.input_tokens, shape.usage.output_tokens) == (30, 20)
    assert shape.usage.input_tokens_details.cached_tokens == 10
    assert await state.slices.parts(first.batch_id) == {0: part(first, failed=3)}
    assert await state.claims.inflight(first.batch_id) == 1


async def test_the_last_commit_finishes_the_rows(state: State) -> None:
    first, second = await claimed(state, slices=2)
    await state.claims.commit(second, part(second))

    await state.claims.commit(first, part(first))

    types = [e.fields["type"] for e in await state.outbox.read("events", limit=9, wait_seconds=0)]
    assert (await state.batches.get(first.batch_id)).status is Status.FINALIZING
    assert types.count("batch.finalizing") == 1
    assert await state.claims.inflight(first.batch_id) == 0
    assert await state.lanes.claimed_count(LANE) == 0
    assert await state.lanes.active(LANE) == []


async def test_a_repeated_commit_is_ok_again_and_changes_nothing(
    state: State, redis: Redis, namespace: str
) -> None:
    first, _ = await claimed(state, slices=2)
    await state.claims.commit(first, part(first))
    before = await contents(redis, namespace)

    outcome = await state.claims.commit(first, part(first))

    assert outcome == "ok"
    assert await contents(redis, namespace) == before


async def test_a_commit_after_anothers_changes_nothing(
    state: State, redis: Redis, namespace: str
) -> None:
    [old] = await claimed(state, slices=1)
    await state.claims.reap(LANE, all_claims=True)
    [new] = await claim(state)
    await state.claims.commit(new, part(new))
    before = await contents(redis, namespace)

    outcome = await state.claims.commit(old, part(old))

    assert outcome == "committed"
    assert await contents(redis, namespace) == before


async def test_a_commit_under_an_old_epoch_is_fenced(
    state: State, redis: Redis, namespace: str
) -> None:
    [old] = await claimed(state, slices=1)
    await state.claims.reap(LANE, all_claims=True)
    [new] = await claim(state)
    before = await contents(redis, namespace)

    outcome = await state.claims.commit(old, part(old))

    assert (old.epoch, new.epoch) == (1, 2)
    assert outcome == "fenced"
    assert await contents(redis, namespace) == before


async def test_a_part_that_comes_after_its_batchs_end_is_swept(state: State) -> None:
    [old] = await claimed(state, slices=1)
    await state.claims.reap(LANE, all_claims=True)
    [new] = await claim(state)
    await state.claims.commit(new, part(new))
    await state.conclude(old.batch_id, Event.OUTPUT_COMMITTED, files=[], fields={}, garbage=None)

    late = await state.claims.commit(old, part(old))
    again = await state.claims.commit(new, part(new))
    by_another = await state.claims.commit(new, part(new)._replace(etag="another"))

    assert (late, again, by_another) == ("committed", "ok", "committed")
    assert await state.files.garbage() == [part(old).key]


async def test_a_late_commit_of_a_reaped_slice_counts_while_nobody_else_runs_it(
    state: State,
) -> None:
    first, second = await claimed(state, slices=2)
    await state.claims.reap(LANE, all_claims=True)

    outcome = await state.claims.commit(first, part(first))

    assert outcome == "ok"
    assert [again.index for again in await claim(state, slices=9)] == [second.index]


@pytest.mark.parametrize("event", [Event.CANCEL_REQUESTED, Event.WINDOW_CLOSED])
async def test_a_closing_batch_still_takes_the_parts_of_live_claims(
    event: Event, state: State
) -> None:
    first, second = await claimed(state, slices=2)
    await state.apply(first.batch_id, event)

    outcomes = [await state.claims.commit(one, part(one)) for one in (first, second)]

    record = await state.batches.get(first.batch_id)
    assert outcomes == ["ok", "ok"]
    assert record.number("completed") == 20
    assert await state.claims.inflight(first.batch_id) == 0


@pytest.mark.parametrize("event", [Event.CANCEL_REQUESTED, Event.WINDOW_CLOSED])
async def test_a_closing_batch_takes_no_part_of_a_reaped_claim(
    event: Event, state: State, redis: Redis, namespace: str
) -> None:
    [only] = await claimed(state, slices=1)
    await state.apply(only.batch_id, event)
    await state.claims.reap(LANE, all_claims=True)
    before = await contents(redis, namespace)

    outcome = await state.claims.commit(only, part(only))

    assert outcome == "closed"
    assert await contents(redis, namespace) == before
    assert await claim(state) == []


@pytest.mark.parametrize("status", [Status.FAILED, Status.CANCELLED, Status.COMPLETED])
async def test_an_ended_batch_takes_no_part(status: Status, state: State) -> None:
    [only] = await claimed(state, slices=1)
    ended = await in_status(state, status)

    outcome = await state.claims.commit(dataclasses.replace(only, batch_id=ended), part(only))

    assert outcome in ("closed", "fenced")
    assert await state.slices.parts(ended) == {}


async def test_a_failed_batch_takes_no_part_of_a_live_claim(state: State) -> None:
    [only] = await claimed(state, slices=1)
    await state.apply(only.batch_id, Event.LANE_FAILED)

    assert await state.claims.commit(only, part(only)) == "closed"
    assert await state.claims.reap(LANE, all_claims=True) == 1
    assert await state.lanes.claimed_count(LANE) == 0
    assert await claim(state) == []


async def test_a_renewed_claim_is_not_reaped(state: State) -> None:
    batch_id = await in_progress(state, slices=1)
    await feed(state, batch_id, slices=1)
    got = await claim(state, lease_seconds=0)

    abandoned = await state.claims.renew(got, lease_seconds=30)

    assert abandoned == []
    assert await state.claims.reap(LANE) == 0


async def test_a_claim_that_ran_out_is_reaped_and_lost_to_its_holder(state: State) -> None:
    batch_id = await in_progress(state, slices=2)
    await feed(state, batch_id)
    first = await claim(state, lease_seconds=0)
    second = await claim(state, lease_seconds=30)

    reaped = await state.claims.reap(LANE)

    assert reaped == 1
    assert await state.claims.renew(first + second, lease_seconds=30) == first
    assert await state.claims.inflight(batch_id) == 1


async def test_a_reaped_slice_goes_to_the_head_of_its_lane(state: State) -> None:
    [given_back] = await claimed(state, slices=1)
    others = await in_progress(state)
    await feed(state, others)

    await state.claims.reap(LANE, all_claims=True)

    assert [one.batch_id for one in await claim(state)] == [given_back.batch_id]


async def test_all_claims_are_reaped_however_many_there_are(state: State) -> None:
    batch_id = await in_progress(state, slices=230)
    for first in (0, 100, 200):
        members = [f"{batch_id}:{index}" for index in range(first, min(first + 100, 230))]
        await state.lanes.feed(LANE, members)
        await claim(state, slices=100, rows=10_000)

    assert await state.claims.reap(LANE, all_claims=True) == 230
    assert await state.claims.inflight(batch_id) == 0


async def test_more_claims_than_fit_one_script_are_renewed(state: State) -> None:
    batch_id = await in_progress(state, slices=130)
    got = []
    for first in (0, 100):
        members = [f"{batch_id}:{index}" for index in range(first, min(first + 100, 130))]
        await state.lanes.feed(LANE, members)
        got += await claim(state, slices=100, rows=10_000)
    await state.claims.release(got[120])

    assert await state.claims.renew(got, lease_seconds=30) == [got[120]]


@pytest.mark.parametrize("event", [Event.CANCEL_REQUESTED, Event.WINDOW_CLOSED, Event.LANE_FAILED])
async def test_the_holder_of_a_claim_hears_that_its_batch_is_closing(
    event: Event, state: State
) -> None:
    got = await claimed(state, slices=1)
    await state.apply(got[0].batch_id, event)

    assert await state.claims.renew(got, lease_seconds=30) == got


async def test_a_released_slice_can_be_claimed_again_with_its_strikes(state: State) -> None:
    [first] = await claimed(state, slices=1)

    released = await state.claims.release(first, strikes=1)

    [again] = await claim_suspects(state)
    assert released
    assert (again.index, again.epoch, again.strikes) == (0, 2, 1)


async def test_a_repeated_release_changes_nothing(
    state: State, redis: Redis, namespace: str
) -> None:
    [first] = await claimed(state, slices=1)
    await state.claims.release(first, strikes=1)
    before = await contents(redis, namespace)

    assert not await state.claims.release(first, strikes=1)
    assert await contents(redis, namespace) == before


async def test_nobody_releases_anothers_claim(state: State, redis: Redis, namespace: str) -> None:
    [old] = await claimed(state, slices=1)
    await state.claims.reap(LANE, all_claims=True)
    await claim(state)
    before = await contents(redis, namespace)

    assert not await state.claims.release(old, strikes=1)
    assert await contents(redis, namespace) == before


async def test_a_slice_released_while_its_batch_closes_is_not_run_again(state: State) -> None:
    [first] = await claimed(state, slices=1)
    await state.apply(first.batch_id, Event.CANCEL_REQUESTED)

    assert await state.claims.release(first)
    assert await claim(state) == []
    assert await state.claims.inflight(first.batch_id) == 0


async def test_a_slice_is_announced_once_and_only_where_that_is_wanted(state: State) -> None:
    first, second, third = await claimed(state, slices=3)

    await state.claims.commit(first, part(first))
    for _ in range(2):
        await state.claims.commit(second, part(second, failed=1), announced=True)
    await state.claims.commit(third, part(third), announced=True)

    entries = await state.outbox.read("events", limit=99, wait_seconds=0)
    types = [entry.fields["type"] for entry in entries]
    committed = [json.loads(entry.fields["slice"]) for entry in entries if "slice" in entry.fields]
    sequences = [int(entry.fields["sequence"]) for entry in entries]
    assert types[2:] == ["slice.committed", "slice.committed", "batch.finalizing"]
    assert committed[0] == {"index": 1, "first_row": 10, "rows": 10, "completed": 9, "failed": 1}
    assert sequences == sorted(set(sequences))
    assert entries[2].snapshot()["completed"] == "19"


async def test_a_slice_in_which_an_engine_died_runs_apart_from_the_others(state: State) -> None:
    first, _ = await claimed(state, slices=2)

    await state.claims.release(first, strikes=1)

    assert await claim(state, slices=9) == []
    assert await state.lanes.suspects_count(LANE) == 1
    assert [one.index for one in await claim_suspects(state)] == [0]
    assert await state.lanes.suspects_count(LANE) == 0


async def test_suspects_are_claimed_together_up_to_so_many_rows_and_one_at_least(
    state: State,
) -> None:
    for one in await claimed(state, slices=4):
        await state.claims.release(one, strikes=1)

    got = [await claim_suspects(state, rows=rows) for rows in (1, 29, 99)]

    assert [[one.index for one in some] for some in got] == [[0], [1, 2], [3]]


async def test_a_suspect_carries_what_is_known_of_its_rows(state: State) -> None:
    [first] = await claimed(state, slices=1)
    await state.claims.release(
        first, strikes=1, strike_ranges=[StrikeRange(0, 8, 1)], last_words="It hung."
    )
    [second] = await claim_suspects(state)

    # A death that is not its own adds nothing, and one that is takes the place of what was known.
    await state.claims.release(second)
    [third] = await claim_suspects(state)
    await state.claims.release(
        third,
        strikes=1,
        strike_ranges=[StrikeRange(0, 7, 1), StrikeRange(7, 8, 2)],
        last_words="Dead.",
        max_deaths=9,
    )
    [fourth] = await claim_suspects(state)

    assert second.strike_ranges == third.strike_ranges == (StrikeRange(0, 8, 1),)
    assert (third.last_words, third.engine_deaths) == ("It hung.", 0)
    assert fourth.strike_ranges == (StrikeRange(0, 7, 1), StrikeRange(7, 8, 2))
    assert (fourth.strikes, fourth.last_words, fourth.engine_deaths) == (2, "Dead.", 1)
    assert (await state.lanes.job(LANE)).deaths == 1


async def test_a_suspect_whose_claim_runs_out_is_a_suspect_again(state: State) -> None:
    [first] = await claimed(state, slices=1)
    await state.claims.release(first, strikes=1)
    await claim_suspects(state)

    assert await state.claims.reap(LANE, all_claims=True) == 1

    assert await claim(state) == []
    assert [one.epoch for one in await claim_suspects(state)] == [3]


async def test_suspects_of_an_ended_batch_are_dropped_on_the_way(state: State) -> None:
    [ended] = await claimed(state, slices=1)
    [live] = await claimed(state, slices=1)
    for one in (ended, live):
        await state.claims.release(one, strikes=1)
    await state.apply(ended.batch_id, Event.CANCEL_REQUESTED)

    got = await claim_suspects(state)

    assert [one.batch_id for one in got] == [live.batch_id]
    assert await state.lanes.suspects_count(LANE) == 0


async def test_a_superseded_job_gets_no_suspects(state: State) -> None:
    [first] = await claimed(state, slices=1)
    await state.claims.release(first, strikes=1)
    await state.lanes.open_job(LANE, JOB, "job-2")

    with pytest.raises(SupersededError):
        await state.claims.take_suspects(LANE, JOB, lease_seconds=30, rows=10)


async def test_a_late_commit_takes_its_slice_from_the_suspects(state: State) -> None:
    first, _ = await claimed(state, slices=2)
    await state.claims.release(first, strikes=1)

    assert await state.claims.commit(first, part(first)) == "ok"

    assert await state.lanes.suspects_count(LANE) == 0


async def test_a_death_after_its_batchs_end_leaves_nothing_behind(
    state: State, redis: Redis, namespace: str
) -> None:
    [only] = await claimed(state, slices=1)
    await state.apply(only.batch_id, Event.LANE_FAILED)
    before = await contents(redis, namespace)

    assert await state.claims.release(
        only, strikes=1, strike_ranges=[StrikeRange(0, 1, 1)], max_deaths=9
    )

    after = await contents(redis, namespace)
    assert {key for key in after if "strikes" in key or "doubts" in key} == set()
    assert after.keys() <= before.keys()
    assert (await state.lanes.job(LANE)).deaths == 0


async def test_deaths_in_a_row_are_counted_up_to_a_result(state: State) -> None:
    first, second, third = await claimed(state, slices=3)
    for one in (first, second):
        await state.claims.release(one, strikes=1, max_deaths=9)
    [first, second] = await claim_suspects(state)
    dead = [dead_row(first, row) for row in range(first.slice.rows)]

    # Rows that are given up are no results.
    await state.claims.commit(first, part(first, failed=10), dead=dead)
    still = (await state.lanes.job(LANE)).deaths
    await state.claims.commit(second, part(second, failed=10), dead=[dead_row(second)])

    assert still == 2
    assert (await state.lanes.job(LANE)).deaths == 0
    assert await state.claims.commit(third, part(third)) == "ok"


async def test_rows_that_killed_engines_are_kept_in_order_and_once(state: State) -> None:
    [mine] = await claimed(state, slices=1)
    [other] = await claimed(state, slices=1, tenant="globex")
    rows = [dead_row(mine, 3, reason="It hung.", custom_id="é\u2028"), dead_row(mine, 1)]

    for _ in range(2):
        assert await state.claims.commit(mine, part(mine, failed=2), dead=rows) == "ok"
    await state.claims.commit(other, part(other, failed=1), dead=[dead_row(other)])
    late = dataclasses.replace(mine, epoch=9)
    assert await state.claims.commit(late, part(late), dead=[dead_row(mine, 5)]) == "committed"

    assert sorted(await state.dead_rows.all(tenant="acme"), key=lambda row: row.id) == rows[::-1]
    assert await state.dead_rows.all(batch_id=other.batch_id) == [dead_row(other)]
    assert (await state.dead_rows.all())[-1] == dead_row(other)
    assert len(await state.dead_rows.all(limit=2)) == 2
    assert await state.dead_rows.get(rows[0].id) == rows[0]


async def test_a_dropped_row_is_gone(state: State) -> None:
    [only] = await claimed(state, slices=1)
    await state.claims.commit(only, part(only, failed=1), dead=[dead_row(only)])

    assert [await state.dead_rows.drop(dead_row(only).id) for _ in range(2)] == [True, False]

    assert await state.dead_rows.all() == []
    with pytest.raises(NotFoundError):
        await state.dead_rows.get(dead_row(only).id)


async def test_the_newest_ten_thousand_dead_rows_are_kept(
    state: State, redis: Redis, namespace: str
) -> None:
    old = {f"old-{number:05d}": number for number in range(10_000)}
    await redis.zadd(f"{namespace}dead-rows-since", old)
    await redis.hset(f"{namespace}dead-rows", mapping=dict.fromkeys(old, "{}"))
    [only] = await claimed(state, slices=1)

    await state.claims.commit(only, part(only, failed=2), dead=[dead_row(only), dead_row(only, 1)])

    kept = await redis.zrange(f"{namespace}dead-rows-since", 0, -1)
    assert kept[0] == "old-00002"
    assert kept[-2:] == sorted(dead_row(only, row).id for row in (0, 1))
    assert set(kept) == set(await redis.hkeys(f"{namespace}dead-rows"))


async def test_an_engine_that_gave_results_before_its_death_begins_another_row(
    state: State,
) -> None:
    first, second, third = await claimed(state, slices=3)

    for one in (first, second):
        await state.claims.release(one, strikes=1, max_deaths=3)
    await state.claims.release(third, strikes=1, max_deaths=3, gave_results=True)

    assert (await state.lanes.job(LANE)).deaths == 1
    assert await state.lanes.failure(LANE) is None


async def test_so_many_deaths_in_a_row_fail_the_lane_and_stop_it(state: State) -> None:
    first, second, _ = await claimed(state, slices=3)
    other = await in_progress(state)

    await state.claims.release(first, strikes=1, max_deaths=2)
    before = await state.lanes.failure(LANE)
    await state.claims.release(second, strikes=1, max_deaths=2)

    assert before is None
    assert await state.lanes.failure(LANE) == (
        "The engine died 2 times in a row, and gave no result between."
    )
    await feed(state, other)
    assert await claim(state) + await claim_suspects(state) == []
    await state.lanes.clear_failure(LANE)
    assert (await state.lanes.job(LANE)).deaths == 0
    assert [one.batch_id for one in await claim(state)] == [other]


async def test_a_pause_takes_back_what_has_not_begun_and_nothing_else(state: State) -> None:
    batch_id = await in_progress(state, slices=3)
    await feed(state, batch_id, slices=3)
    begun, *waiting = await claim(state, slices=3, begun=False)
    assert await state.claims.begin([begun]) == [True]

    await state.controls.pause(batch_id)
    taken = await state.claims.take_back(batch_id, unbegun_only=True)

    assert taken == 2
    assert await state.claims.inflight(batch_id) == 1
    # The lane job that held them begins them in vain.
    assert await state.claims.begin([begun, *waiting]) == [False] * 3
    assert await state.claims.inflight(batch_id) == 0


async def test_what_has_not_begun_is_put_back_and_may_be_claimed_again(state: State) -> None:
    batch_id = await in_progress(state, slices=3)
    await feed(state, batch_id, slices=3)
    begun, *waiting = claims = await claim(state, slices=3, begun=False)
    assert await state.claims.begin([begun]) == [True]

    assert await state.claims.put_back(claims) == waiting

    assert await state.claims.inflight(batch_id) == 1
    again = await claim(state, slices=3, begun=True)
    assert [one.index for one in again] == [one.index for one in waiting]
    # Whoever held them begins them in vain, and gives nothing of the new claims back.
    assert await state.claims.begin(claims) == [True, False, False]
    assert await state.claims.inflight(batch_id) == 3


async def test_what_was_put_back_is_named_again_to_whoever_missed_the_answer(state: State) -> None:
    batch_id = await in_progress(state, slices=3)
    await feed(state, batch_id, slices=3)
    first, *others = claims = await claim(state, slices=3, begun=False)

    assert await state.claims.put_back(claims) == claims
    assert await state.claims.put_back(claims) == claims
    # Neither is that of a new claim given back, nor is a slice named that has its part.
    [again] = await claim(state, slices=1, begun=False)
    assert await state.claims.put_back([first]) == [first]
    assert await state.claims.inflight(batch_id) == 1
    await state.claims.commit(again, part(again))
    assert await state.claims.put_back([again, *others]) == others


async def test_a_slice_of_a_batch_that_stopped_does_not_begin_and_goes_back(state: State) -> None:
    await feed(state, *[await in_progress(state, slices=1) for _ in "123"], slices=1)
    paused, cancelled, running = await claim(state, slices=3, begun=False)
    await state.controls.pause(paused.batch_id)
    await state.apply(cancelled.batch_id, Event.CANCEL_REQUESTED)

    may_run = await state.claims.begin([paused, cancelled, running])

    assert may_run == [False, False, True]
    held = [await state.claims.inflight(one.batch_id) for one in (paused, cancelled, running)]
    assert held == [0, 0, 1]


async def test_lane_jobs_are_told_of_slices_that_must_stop_and_why(state: State) -> None:
    paused, cancelled, running = [(await claimed(state, slices=1))[0] for _ in "123"]
    async with state.bells("stops") as bells:
        await state.controls.pause(paused.batch_id)
        assert await bells.wait(60)
        await state.apply(cancelled.batch_id, Event.CANCEL_REQUESTED)
        assert await bells.wait(60)

    places = [(one.batch_id, LANE) for one in (paused, cancelled, running)]
    assert await state.claims.stops(places) == {places[0]: Stop.PAUSED, places[1]: Stop.CLOSED}


async def test_a_batch_that_lost_one_of_its_lanes_stops_there_alone(state: State) -> None:
    batch_id = await in_progress(state, lane="m@gpu n@gpu")

    async with state.bells("stops") as bells:
        await state.fail_lane("m@gpu", batch_id, "no", {})
        assert await bells.wait(60)

    places = [(batch_id, "m@gpu"), (batch_id, "n@gpu")]
    assert await state.claims.stops(places) == {places[0]: Stop.CLOSED}


async def test_what_is_in_the_engine_of_a_paused_batch_is_known_once_its_jobs_have_told(
    state: State,
) -> None:
    one, other = await claimed(state)
    await state.controls.pause(one.batch_id)

    before = await state.claims.ending(one.batch_id)
    await state.claims.tell_ending(one, 7)
    await state.claims.tell_ending(dataclasses.replace(other, epoch=9), 5)
    told = await state.claims.ending(one.batch_id)
    await state.claims.release(one, reason=ReleaseReason.PAUSED)

    assert before == (0, [0, 1])
    assert told == (7, [1])
    assert await state.claims.ending(one.batch_id) == (0, [1])


async def test_the_next_claim_of_a_slice_carries_what_was_kept_until_it_is_committed(
    state: State,
) -> None:
    [first] = await claimed(state, slices=1)
    some = part(first, rows=3)
    await state.claims.release(first, kept=some)
    [second] = await claim(state)
    # Without anything new, what was kept stays.
    await state.claims.release(second)
    [third] = await claim(state)

    assert (second.kept, third.kept) == (some, some)
    assert await state.claims.commit(third, part(third)) == "ok"
    assert await state.slices.parts(third.batch_id) == {0: part(third)}
    counts = (await state.batches.get(third.batch_id)).to_openai().request_counts
    assert counts.completed == part(third).usage.completed


async def test_nothing_is_kept_for_a_claim_that_is_lost_to_another_or_for_what_is_committed(
    state: State,
) -> None:
    [first] = await claimed(state, slices=1)
    await state.claims.reap(LANE, all_claims=True)
    # Taken back, and nobody else has it yet: then its rows are worth keeping.
    await state.claims.release(first, kept=part(first, rows=2))
    [second] = await claim(state)
    await state.claims.release(first, kept=part(first, rows=1))
    await state.claims.release(second)
    [third] = await claim(state)
    await state.claims.commit(third, part(third))
    await state.claims.release(third, kept=part(third, rows=1))

    assert third.kept == part(first, rows=2)
    assert await state.claims.commit_kept(third.batch_id) == 0


async def test_what_is_kept_of_a_closing_batch_becomes_its_parts_once_nothing_is_claimed(
    state: State,
) -> None:
    one, other = await claimed(state, slices=2)
    await state.claims.release(one, kept=part(one, rows=3))
    await state.apply(one.batch_id, Event.CANCEL_REQUESTED)

    early = await state.claims.commit_kept(one.batch_id)
    await state.claims.release(other)
    found = [await state.claims.commit_kept(one.batch_id) for _ in "12"]

    assert [early, *found] == [0, 1, 0]
    assert await state.slices.parts(one.batch_id) == {0: part(one, rows=3)}
    record = await state.batches.get(one.batch_id)
    assert (record.number("completed"), record.number("slices_committed")) == (3, 1)
    assert [(0, 0)] == await state.slices.commits(one.batch_id, 0)


async def test_nothing_is_kept_of_a_closing_batch_once_its_claims_were_taken_back(
    state: State,
) -> None:
    one, other = await claimed(state, slices=2)
    await state.apply(one.batch_id, Event.CANCEL_REQUESTED)
    in_time = await state.claims.release(one, kept=part(one, rows=3))
    await state.claims.take_back(one.batch_id)
    await state.claims.commit_kept(one.batch_id)
    # A finaliser has read all parts by now, and may have written its commit.
    frozen = await state.batches.get(one.batch_id)

    late = await state.claims.release(other, kept=part(other, rows=2))

    assert (in_time, late) == (True, False)
    assert await state.claims.commit_kept(one.batch_id) == 0
    assert await state.slices.parts(one.batch_id) == {0: part(one, rows=3)}
    assert (await state.batches.get(one.batch_id)).fields == frozen.fields


async def test_a_broken_part_of_a_mixed_batch_runs_again_on_its_lane_alone(
    state: State, redis: Redis, namespace: str
) -> None:
    batch_id = await in_progress(state, lane="m@gpu n@gpu")
    claims = []
    for lane in ("m@gpu", "n@gpu"):
        await feed(state, batch_id, lane=lane)
        claims += await claim(state, lane=lane)
    for one in claims:
        await state.claims.commit(one, part(one))
    broken = (await state.slices.parts(batch_id))[1]

    assert await state.claims.drop_part(batch_id, 1, broken) == "again"

    record = await state.batches.get(batch_id)
    assert (record.status, record.number("completed")) == (Status.IN_PROGRESS, ROWS_A_SLICE)
    assert [record.number(f"slices_left:{lane}") for lane in ("m@gpu", "n@gpu")] == [0, 1]
    for kind in ("active", "waiting"):
        lists = [
            await redis.zrange(f"{namespace}lane:{lane}:{kind}", 0, -1)
            for lane in ("m@gpu", "n@gpu")
        ]
        assert lists == [[], [batch_id]], kind
    await feed(state, batch_id, lane="n@gpu")
    [again] = await claim(state, lane="n@gpu")
    assert (again.index, again.epoch) == (1, 2)


async def test_a_broken_part_of_a_lane_that_was_given_up_is_given_up_too(state: State) -> None:
    batch_id = await in_progress(state, lane="m@gpu n@gpu")
    await feed(state, batch_id, lane="m@gpu")
    [one] = await claim(state, lane="m@gpu")
    await state.claims.commit(one, part(one))
    await state.fail_lane("m@gpu", batch_id, "no", {})
    broken = (await state.slices.parts(batch_id))[0]

    assert await state.claims.drop_part(batch_id, 0, broken) == "lost"

    record = await state.batches.get(batch_id)
    assert (record.number("given_up"), record.number("completed")) == (ROWS_A_SLICE, 0)


async def test_claims_on_a_lane_that_was_given_up_are_charged_to_nobody(
    state: State, redis: Redis, namespace: str
) -> None:
    batch_id = await in_progress(state, lane="m@gpu n@gpu")
    await feed(state, batch_id, lane="m@gpu")
    assert await claim(state, lane="m@gpu")

    await state.fail_lane("m@gpu", batch_id, "no", {})

    assert (await state.lanes.served("m@gpu"))["acme"] == 0
    assert await redis.hgetall(f"{namespace}lane:m@gpu:claimed") == {}


async def test_a_tenants_queue_counts_a_batch_that_runs_again(
    state: State, redis: Redis, namespace: str
) -> None:
    [one, other] = await claimed(state)
    queued = {"queued_model": "m", "prompt_tokens": 7}
    await redis.hset(f"{namespace}batch:{one.batch_id}", mapping=queued)
    for each in (one, other):
        await state.claims.commit(each, part(each))
    left = await redis.hgetall(f"{namespace}enqueued:acme")
    broken = (await state.slices.parts(one.batch_id))[0]

    await state.claims.drop_part(one.batch_id, 0, broken)

    assert left == {}
    assert await redis.hgetall(f"{namespace}enqueued:acme") == {
        "requests": str(2 * ROWS_A_SLICE),
        "tokens:m": "7",
    }
