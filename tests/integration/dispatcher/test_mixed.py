"""Batches of several lanes: how they are cut, what they hold of quotas, how they end."""

import json
from typing import Any

import pytest
from redis.asyncio import Redis

from dispatcher.cluster import Cluster
from dispatcher.finaliser import Finaliser
from dispatcher.lanes import LaneKeeper
from shared.catalog import Catalog
from shared.lifecycle import Event, Status
from shared.slices import Slice
from shared.state import Quota, State
from shared.storage import Storage
from tests.batches import LANE
from tests.integration.dispatcher.conftest import (
    CHAT,
    OUTPUT_SECONDS,
    BatchYard,
    a_planner,
    bad,
    good,
    line,
    lines,
)

OTHER = "other@gpu"
#: Rows 0, 1, 4, 6 and 7 are for the one lane, 2, 3 and 5 for the other.
MODELS = ["m", "m", "other", "other", "m", "other", "m", "m"]
BODY = b"".join(line(f"row-{row}", model=model) + b"\n" for row, model in enumerate(MODELS))


@pytest.fixture
def mixed(state: State, storage: Storage, catalog: Catalog) -> BatchYard:
    """A yard whose operator lets lines name models of their own; slices have three rows."""
    planner = a_planner(state, storage, catalog, mixed_batches=True)
    return BatchYard(
        state, storage, planner, Finaliser(state, storage, output_seconds=OUTPUT_SECONDS)
    )


async def test_each_lane_has_its_slices_and_forgets_the_batch_when_they_are_done(
    mixed: BatchYard,
) -> None:
    batch_id = await mixed.plan(BODY)

    record = await mixed.state.batches.get(batch_id)
    assert (record.lanes, "model" in record.fields) == ([LANE, OTHER], False)
    assert [(one.lane, list(one.row_numbers)) for one in await mixed.slices(batch_id)] == [
        (0, [0, 1, 4]),
        (1, [2, 3, 5]),
        (0, [6, 7]),
    ]
    lanes = mixed.state.lanes
    assert [await lanes.active(lane) for lane in (LANE, OTHER)] == [[batch_id], [batch_id]]
    assert [await lanes.rows_ahead(lane, tenant=record.tenant) for lane in (LANE, OTHER)] == [
        (5, 0),
        (3, 0),
    ]
    own = await lanes.candidates(OTHER, slices_per_batch=9)
    assert [(one.index, one.rows) for one in own] == [(1, 3)]
    claims = await mixed.claim(batch_id)
    assert [claim.lane for claim in claims] == [LANE, OTHER, LANE]
    await mixed.commit(claims[1], [good()] * 3)
    assert [await lanes.active(lane) for lane in (LANE, OTHER)] == [[batch_id], []]
    assert await lanes.close_job(OTHER, "job-1")
    assert not await lanes.close_job(LANE, "job-1")


async def test_a_batch_of_one_lane_is_kept_as_ever_where_more_are_allowed(
    mixed: BatchYard, yard: BatchYard, redis: "Redis[str]", namespace: str
) -> None:
    seen = []
    for planned in (yard, mixed):
        batch_id = await planned.plan(lines(7))
        fields = dict((await planned.state.batches.get(batch_id)).fields)
        plan = fields.pop("plan")
        seen.append(
            [
                {name: fields[name] for name in fields.keys() - {"id", "key", "message_id", "etag"}}
                | {"input_file_id": "", "in_progress_at": ""},
                await redis.hgetall(f"{namespace}plan:{batch_id}:{plan}"),
                await redis.zrange(f"{namespace}pending:{batch_id}:{plan}", 0, -1),
            ]
        )

    assert seen[0] == seen[1]
    assert len(json.loads(seen[1][1]["0"])) == 5


async def test_adapters_of_one_model_share_its_lane(mixed: BatchYard) -> None:
    body = b"\n".join([line("a", model="few"), line("b", model="adapter")])

    batch_id = await mixed.plan(body)

    record = await mixed.state.batches.get(batch_id)
    assert (record.lanes, record.fields["queued_model"]) == (["few@gpu"], "few")
    assert "model" not in record.fields
    assert [one[2:4] for one in await mixed.slices(batch_id)] == [(0, 2)]


async def test_each_model_counts_its_own_tokens(
    state: State,
    storage: Storage,
    catalog: Catalog,
    mixed: BatchYard,
    redis: "Redis[str]",
    namespace: str,
) -> None:
    quota = Quota(requests=0, tokens=1_000_000)
    planner = a_planner(state, storage, catalog, quota=quota, mixed_batches=True)
    long: dict[str, Any] = {"user": "x" * 2600}
    both = line("a", **long) + b"\n" + line("b", model="few", **long)

    running, waiting = await mixed.submit(both), await mixed.submit(both)
    for batch_id in (running, waiting):
        await planner.plan(batch_id)

    held = await redis.hgetall(f"{namespace}enqueued:acme")
    assert held.keys() == {"requests", "tokens:m", "tokens:few"}
    assert held["requests"] == "2"
    record = await state.batches.get(waiting)
    assert record.status is Status.FAILED
    assert "token limit reached for few" in record.fields["first_error"]
    await state.apply(running, Event.CANCEL_REQUESTED)
    assert await redis.hgetall(f"{namespace}enqueued:acme") == {}


async def test_what_expires_in_several_lanes_is_written_in_input_order(mixed: BatchYard) -> None:
    batch_id = await mixed.plan(BODY)
    first, other, last = await mixed.claim(batch_id)
    await mixed.commit(last, [good(), bad()])
    await mixed.state.apply(batch_id, Event.WINDOW_CLOSED, {"window_closed": 1})
    # Some of it ran before it was stopped; the other lane got nowhere.
    await mixed.commit(first, [bad(), good(), None])
    await mixed.state.claims.release(other)

    await mixed.finaliser.finish(batch_id)

    shape = (await mixed.state.batches.get(batch_id)).to_openai()
    assert shape.status is Status.EXPIRED
    output = await mixed.parsed(shape.output_file_id)
    errors = await mixed.parsed(shape.error_file_id)
    assert [one["custom_id"] for one in output] == ["row-1", "row-6"]
    assert [(one["custom_id"], (one["error"] or {}).get("code")) for one in errors] == [
        ("row-0", None),
        ("row-2", "batch_expired"),
        ("row-3", "batch_expired"),
        ("row-4", "batch_expired"),
        ("row-5", "batch_expired"),
        ("row-7", None),
    ]
    assert shape.request_counts.model_dump() == {"total": 8, "completed": 2, "failed": 6}


async def test_a_lane_that_fails_at_last_keeps_what_it_had_done(mixed: BatchYard) -> None:
    batch_id = await mixed.plan(BODY)
    first, other, last = await mixed.claim(batch_id)
    await mixed.commit(first, [good()] * 3)

    await mixed.state.fail_lane(LANE, batch_id, "out of memory", {})

    running = (await mixed.state.batches.get(batch_id)).to_openai()
    assert running.status is Status.IN_PROGRESS
    assert running.request_counts.model_dump() == {"total": 8, "completed": 3, "failed": 2}
    assert await mixed.state.claims.inflight(batch_id) == 1
    assert not await mixed.state.claims.release(last)
    await mixed.commit(other, [good()] * 3)
    await mixed.finaliser.finish(batch_id)
    shape = (await mixed.state.batches.get(batch_id)).to_openai()
    assert shape.request_counts.model_dump() == {"total": 8, "completed": 6, "failed": 2}
    errors = await mixed.parsed(shape.error_file_id)
    assert [(one["custom_id"], one["error"]) for one in errors] == [
        (f"row-{row}", {"code": "engine_failed", "message": "out of memory"}) for row in (6, 7)
    ]
    assert (await mixed.events(batch_id))[-1] == "batch.completed"


async def test_the_keeper_fails_a_lanes_own_batches_and_lets_others_go_on(mixed: BatchYard) -> None:
    several, alone = await mixed.plan(BODY), await mixed.plan(lines(2))
    # Nothing listens there, and nobody is asked.
    cluster = Cluster("http://127.0.0.1:9", "token")
    keeper = LaneKeeper(
        mixed.state, mixed.storage, cluster, ready_rows=64, silence_seconds=60, attempts=5
    )
    await mixed.state.lanes.fail(LANE, "out of memory")

    await keeper.keep(LANE)

    await cluster.close()
    failed = await mixed.state.batches.get(alone)
    assert failed.status is Status.FAILED
    assert failed.fields["first_error"] == "out of memory"
    [problem] = json.loads(failed.fields["errors"])
    assert (problem["code"], problem["message"]) == ("engine_failed", "out of memory")
    assert (await mixed.state.batches.get(several)).status is Status.IN_PROGRESS
    assert await mixed.state.lanes.active(LANE) == []
    assert await mixed.state.lanes.active(OTHER) == [several]
    assert await mixed.state.lanes.failure(LANE) is None


async def test_a_paused_batch_leaves_all_its_lanes_and_comes_back_to_those_with_work(
    mixed: BatchYard,
) -> None:
    batch_id = await mixed.plan(BODY)
    claims = await mixed.claim(batch_id)
    await mixed.state.claims.release(claims[0])
    lanes = mixed.state.lanes

    await mixed.state.controls.pause(batch_id)

    assert [await lanes.active(lane) for lane in (LANE, OTHER)] == [[], []]
    await mixed.commit(claims[1], [good()] * 3)
    await mixed.state.controls.resume(batch_id)
    assert [await lanes.active(lane) for lane in (LANE, OTHER)] == [[batch_id], []]
    assert [one.index for one in await lanes.candidates(LANE, slices_per_batch=9)] == [0]


async def test_endpoints_of_one_model_need_no_second_lane(mixed: BatchYard) -> None:
    completion = {
        "custom_id": "b",
        "method": "POST",
        "url": "/v1/completions",
        "body": {"model": "m", "prompt": "x"},
    }
    body = line("a") + b"\n" + json.dumps(completion).encode()

    batch_id = await mixed.plan(body)

    record = await mixed.state.batches.get(batch_id)
    assert (record.lanes, record.fields["model"]) == ([LANE], "m")
    assert record.fields["endpoint"] == CHAT
    [only] = await mixed.slices(batch_id)
    assert only == Slice(0, len(body), 0, 2, only.tokens)
