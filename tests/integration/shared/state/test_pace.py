"""What Redis keeps for the pace of a lane's engine, and of its starts."""

import json

from msgspec import structs
from redis.asyncio import Redis

from shared.ordering.pace import Done, Pace, kind_of, to_text
from shared.ordering.tenant_usage import (
    USAGE_KINDS,
    USAGE_ROWS,
    USAGE_TENANTS,
    TenantKind,
    TenantUsage,
)
from shared.rows_in_engine import RowsInEngine
from shared.slices import SliceUsage
from shared.state import State
from tests.batches import JOB, LANE, ROWS_A_SLICE, claimed, in_progress, part
from tests.fleet_counts import REPLICA

_PACE = Pace().learn({"": Done(100, 10_000, 5_000)}, 100.0)
_USAGE = SliceUsage(ROWS_A_SLICE, 0, 700, 100, 50, 0)


async def _commit(state: State) -> None:
    """One slice of a new batch gets its results."""
    [claim] = await claimed(state, slices=1)
    assert await state.claims.commit(claim, part(claim)._replace(usage=_USAGE)) == "ok"


async def test_rows_are_counted_by_their_kind_with_predicted_and_used_tokens(state: State) -> None:
    await state.lanes.open_job(LANE, "", JOB)
    [claim] = await claimed(state, slices=1)
    result = part(claim)._replace(usage=_USAGE)

    for _ in range(2):
        assert await state.claims.commit(claim, result) == "ok"

    kind = kind_of("/v1/chat/completions", claim.slice.tokens, claim.slice.rows)
    assert await state.lanes.done(LANE) == {
        kind: Done(rows=ROWS_A_SLICE, predicted=claim.slice.tokens, used=650)
    }


async def test_what_a_tenants_rows_took_is_kept_by_their_kind(state: State) -> None:
    await state.lanes.open_job(LANE, "", JOB)
    await state.lanes.beat(LANE, JOB, rows_wanted=1, pace=to_text(_PACE))
    [claim] = await claimed(state, slices=1)
    result = part(claim)._replace(usage=_USAGE)

    for _ in range(2):
        assert await state.claims.commit(claim, result) == "ok"

    [(whose, usage)] = (await state.lanes.outlook(LANE)).usages.items()
    assert whose.kind == kind_of("/v1/chat/completions", claim.slice.tokens, claim.slice.rows)
    assert usage == TenantUsage(ROWS_A_SLICE, claim.slice.tokens, 600, 50)


async def test_of_a_tenants_many_rows_the_new_ones_count_most(
    state: State, redis: Redis, namespace: str
) -> None:
    await state.lanes.open_job(LANE, "", JOB)
    await state.lanes.beat(LANE, JOB, rows_wanted=1, pace=to_text(_PACE))
    await _commit(state)
    key = f"{namespace}lane:{LANE}:usage"
    [[kind, *_]] = json.loads(await redis.hget(key, "acme") or "")
    await redis.hset(key, "acme", json.dumps([[kind, USAGE_ROWS, 4000, 2000, 1000]]))

    await _commit(state)

    [usage] = (await state.lanes.outlook(LANE)).usages.values()
    assert (usage.rows, usage.prompts, usage.answers) == (
        (USAGE_ROWS + ROWS_A_SLICE) / 2,
        1300,
        525,
    )


async def _usages(state: State) -> list[TenantKind]:
    return sorted((await state.lanes.outlook(LANE)).usages)


async def _knowing_a_pace(state: State) -> None:
    await state.lanes.open_job(LANE, "", JOB)
    await state.lanes.beat(LANE, JOB, rows_wanted=1, pace=to_text(_PACE))


async def test_of_a_tenant_the_kinds_are_kept_that_had_rows_last(
    state: State, redis: Redis, namespace: str
) -> None:
    await _knowing_a_pace(state)
    await _commit(state)
    [own] = await _usages(state)
    others = [f"kind {number}" for number in range(USAGE_KINDS)]
    key = f"{namespace}lane:{LANE}:usage"
    await redis.hset(key, "acme", json.dumps([[kind, 1, 2, 3, 4] for kind in others]))

    await _commit(state)

    assert {one.kind for one in await _usages(state)} == {own.kind, *others[:-1]}

    await redis.hset(
        key, "acme", json.dumps([[kind, 1, 2, 3, 4] for kind in [*others[1:], own.kind]])
    )
    await _commit(state)

    assert {one.kind for one in await _usages(state)} == {own.kind, *others[1:]}


async def test_the_tenants_are_kept_that_had_rows_last(
    state: State, redis: Redis, namespace: str
) -> None:
    await _knowing_a_pace(state)
    names = [f"tenant-{number}" for number in range(USAGE_TENANTS)]
    text = json.dumps([["kind 1", 1, 2, 3, 4]])
    await redis.hset(f"{namespace}lane:{LANE}:usage", mapping=dict.fromkeys(names, text))
    since = {name: 1000 + number for number, name in enumerate(names)}
    await redis.zadd(f"{namespace}lane:{LANE}:usage-since", since)

    for _ in range(2):
        await _commit(state)

    assert {one.tenant for one in await _usages(state)} == {"acme", *names[1:]}
    assert await redis.zcard(f"{namespace}lane:{LANE}:usage-since") == USAGE_TENANTS


async def test_the_time_of_a_start_is_learned_and_outlives_the_job(
    state: State, redis: Redis, namespace: str
) -> None:
    key = f"{namespace}lane:{LANE}:job"
    await state.lanes.open_job(LANE, "", JOB)
    opened_at_ms = int((await redis.hget(key, "opened_at_ms")) or 0)
    await redis.hset(key, "opened_at_ms", opened_at_ms - 90_000)

    await _commit(state)
    first = await state.lanes.job(LANE)
    await _commit(state)

    job = await state.lanes.job(LANE)
    assert 90 <= first.cold_start <= 150
    assert (first.warm_start, job.cold_start) == (0, first.cold_start)
    assert job.first_result_at == first.first_result_at > 0

    await state.lanes.open_job(LANE, JOB, "job-2")
    job = await state.lanes.job(LANE)
    assert (job.first_result_at, job.cold_start) == (0, first.cold_start)


async def test_a_start_on_another_pool_says_nothing_of_the_lanes_own(state: State) -> None:
    await state.lanes.open_job(LANE, "", JOB)
    await state.lanes.beat(LANE, JOB, rows_wanted=1, runs_on="elsewhere")

    await _commit(state)

    job = await state.lanes.job(LANE)
    assert job.first_result_at > 0
    assert job.cold_start == 0


async def test_the_pace_outlives_the_job_that_measured_it(state: State) -> None:
    pace = Pace().learn({"/v1/embeddings 2": Done(10, 400, 300)}, 2.0)
    await state.lanes.open_job(LANE, "", JOB)
    await state.lanes.beat(LANE, JOB, rows_wanted=1, pace=to_text(pace))

    await state.lanes.open_job(LANE, JOB, "job-2")

    assert (await state.lanes.job(LANE)).pace == pace


async def test_how_far_rows_are_is_what_all_replicas_of_the_engine_said_just_now(
    state: State, redis: Redis, namespace: str
) -> None:
    batch_id = await in_progress(state)
    await _knowing_a_pace(state)
    await state.lanes.beat(LANE, JOB, rows_wanted=1, pace=to_text(_PACE), runs_on="elsewhere")
    rows = {batch_id: RowsInEngine(3, 30, inside=2, made=8)}
    one, other, silent = (
        structs.replace(REPLICA, replica=name, batches=rows) for name in ("one", "other", "silent")
    )
    await state.engines.count(LANE, [one, silent])
    await state.engines.count("m@elsewhere", [other])
    key = f"{namespace}lane:{LANE}:numbers"
    _, _, numbers = (await redis.hget(key, "silent") or "").partition(" ")
    await redis.hset(key, "silent", f"1000 {numbers}")

    [load] = (await state.lanes.outlook(LANE)).running

    assert load.in_engine == RowsInEngine(6, 60, inside=4, made=16)
    assert load.rows_open == 2 * ROWS_A_SLICE - 6


async def test_of_a_batch_that_no_engine_has_nothing_is_said(state: State) -> None:
    await in_progress(state)
    await _knowing_a_pace(state)
    await state.engines.count(LANE, [REPLICA])

    [load] = (await state.lanes.outlook(LANE)).running

    assert load.in_engine is None
