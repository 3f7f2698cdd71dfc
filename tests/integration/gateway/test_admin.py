"""What operators see of the fleet, and who may see it."""

import secrets
import time
from typing import Any

import msgspec
import pytest

from shared.engine_starts import Start
from shared.engines import EngineRecord, EngineSeconds, Replica
from shared.ledger.keys import add_key
from shared.scopes import Scope
from shared.state import State
from shared.state.streams import Stream
from shared.storage import Storage
from tests.batches import JOB, claim, feed, in_progress
from tests.fleet_counts import REPLICA
from tests.integration.dispatcher.conftest import MICROS, BatchYard, good, lines
from tests.integration.gateway.conftest import Caller

_PATHS = ("/v1/admin/fleet", "/v1/admin/lanes", "/v1/admin/engines", "/v1/admin/tenants")


@pytest.fixture
async def operator(acme: Caller, gateway_state: State, bucket: Storage) -> dict[str, str]:
    """The headers of an operator."""
    key = f"sk-operator-{secrets.token_hex(4)}"
    await add_key(gateway_state, bucket, "yard", key, scopes=(Scope.OPERATOR,))
    return {"authorization": f"Bearer {key}"}


@pytest.mark.parametrize("path", _PATHS)
async def test_only_operators_see_what_is_not_their_own(
    path: str, acme: Caller, operator: dict[str, str]
) -> None:
    refused = await acme.http.get(path)
    allowed = await acme.http.get(path, headers=operator)
    elsewhere = await acme.http.get("/v1/batches", headers=operator)

    assert (refused.status_code, allowed.status_code) == (403, 200)
    assert "Missing scopes: operator" in refused.json()["error"]["message"]
    assert elsewhere.status_code == 403


async def test_a_lane_shows_its_tenants_and_what_it_waits_for(
    acme: Caller, globex: Caller, operator: dict[str, str], gateway_state: State
) -> None:
    lane = f"m@{secrets.token_hex(4)}"
    mine = await in_progress(gateway_state, tenant=acme.tenant, lane=lane, slices=3)
    await in_progress(gateway_state, tenant=globex.tenant, lane=lane, slices=1)
    await feed(gateway_state, mine, slices=2, lane=lane)

    waiting = await _lane(acme, operator, lane)
    await gateway_state.lanes.open_job(lane, "", JOB)
    await gateway_state.lanes.beat(lane, JOB, rows_wanted=64, rate=2.5)
    await _see(gateway_state, _engine(lane, "starting", "no such weights"))
    failing = await _lane(acme, operator, lane)
    await claim(gateway_state, lane=lane)
    await _see(gateway_state, _engine(lane, "running"))
    running = await _lane(acme, operator, lane)

    assert waiting["tenants"] == [
        {"tenant": acme.tenant, "batches": 1, "rows_left": 30},
        {"tenant": globex.tenant, "batches": 1, "rows_left": 10},
    ]
    assert (waiting["batches"], waiting["rows_left"], waiting["ready_slices"]) == (2, 40, 2)
    assert waiting["waits_for"]["code"] == "lane_starting"
    assert failing["waits_for"] == {
        "code": "engine_failed",
        "message": "The lane's engine could not start, and is tried again: no such weights",
    }
    assert (running["waits_for"], running["rows_per_second"]) == (None, 2.5)
    assert running["running_slices"] == 1


async def test_the_reason_of_an_engine_that_does_not_start_is_in_its_batch_and_in_the_fleet(
    acme: Caller, operator: dict[str, str], gateway_state: State
) -> None:
    lane = f"m@{secrets.token_hex(4)}"
    batch_id = await in_progress(gateway_state, tenant=acme.tenant, lane=lane)
    await gateway_state.lanes.open_job(lane, "", JOB)
    await gateway_state.lanes.beat(lane, JOB, rows_wanted=64)
    # A lane job claims slices before its engine runs.
    await feed(gateway_state, batch_id, slices=1, lane=lane)
    await claim(gateway_state, lane=lane)

    await _see(gateway_state, _engine(lane, "starting", "no such weights"))
    explained = (await acme.http.get(f"/v1/batches/{batch_id}/explain")).json()
    engines = (await acme.http.get("/v1/admin/engines", headers=operator)).json()["data"]

    assert explained["waits_for"]["code"] == "engine_failed"
    assert explained["summary"].endswith("is tried again: no such weights")
    found = next(one for one in engines if one["lane"] == lane)
    assert (found["state"], found["reason"]) == ("starting", "no such weights")
    # What the catalog has and nobody needed yet is there, too.
    assert {one["state"] for one in engines if one["lane"] == "tiny@cpu"} == {"absent"}


async def test_a_tenant_shows_what_it_has_in_all_lanes(
    acme: Caller, operator: dict[str, str], gateway_state: State
) -> None:
    lanes = sorted(f"m@{secrets.token_hex(4)}" for _ in range(2))
    for lane in lanes:
        await in_progress(gateway_state, tenant=acme.tenant, lane=lane)

    calls = [Stream(acme.tenant, name) for name in ("one", "other")]
    await gateway_state.live_calls.open.renew(calls, seconds=60)

    listed = (await acme.http.get("/v1/admin/tenants", headers=operator)).json()["data"]

    found = next(one for one in listed if one["id"] == acme.tenant)
    assert (found["batches"], found["rows_left"], found["lanes"]) == (2, 40, lanes)
    assert found["live_calls"] == 2


async def test_an_engine_shows_what_its_last_start_was_made_of(
    acme: Caller, operator: dict[str, str], gateway_state: State
) -> None:
    lane = f"m@{secrets.token_hex(4)}"
    engine = msgspec.structs.replace(
        _engine(lane, "running"), starts=1, last_start_seconds=14.5, last_start_replica="r"
    )
    await _see(gateway_state, engine)
    start = Start({"process": 3.0, "core": 8.0, "weights": 2.0}, 0.5, 1, {"core": 2.5})

    unknown = await _engine_view(acme, operator, lane)
    await gateway_state.engines.count(lane, [msgspec.structs.replace(REPLICA, start=start)])
    known = await _engine_view(acme, operator, lane)

    assert (unknown["last_start_stages"], unknown["first_row_seconds"]) == ({}, None)
    assert known["last_start_stages"] == {"process": 3, "core": 8, "weights": 2, "other": 1.5}
    assert (unknown["restarts"], unknown["last_restart_stages"]) == (0, {})
    assert (known["restarts"], known["last_restart_stages"]) == (1, {"core": 2.5})
    assert (known["last_start_seconds"], known["first_row_seconds"]) == (14.5, 0.5)


async def _engine_view(caller: Caller, headers: dict[str, str], lane: str) -> dict[str, Any]:
    answer = await caller.http.get("/v1/admin/engines", headers=headers)
    found: dict[str, Any] = next(one for one in answer.json()["data"] if one["lane"] == lane)
    return found


async def test_the_seconds_of_a_look_count_once(gateway_state: State) -> None:
    engine, day = _engine("m@seconds", "running"), secrets.randbelow(10**6)
    seconds = [EngineSeconds(engine.lane, 2, 5)]
    before = (await gateway_state.engines.last()).number

    outcomes = [
        await gateway_state.engines.look(number, [engine], seconds, day=day)
        for number in (before, before, before + 1)
    ]

    assert outcomes == [True, False, True]
    assert await gateway_state.engines.seconds(day) == [EngineSeconds(engine.lane, 4, 10)]


async def _see(state: State, engine: EngineRecord) -> None:
    before = await state.engines.last()
    others = [one for one in before.engines.values() if one.lane != engine.lane]
    assert await state.engines.look(before.number, [*others, engine], [], day=0)


def _engine(lane: str, state: Any, reason: str = "") -> EngineRecord:
    now = time.time()
    replica = Replica("r", "starting", placed_at=now)
    return EngineRecord(
        lane=lane, state=state, since=now, seen_at=now, reason=reason, replicas=(replica,)
    )


async def _lane(caller: Caller, headers: dict[str, str], name: str) -> dict[str, Any]:
    answer = await caller.http.get("/v1/admin/lanes", headers=headers)
    found: dict[str, Any] = next(one for one in answer.json()["data"] if one["name"] == name)
    return found


async def test_a_tenant_sees_its_own_costs_and_an_operator_those_of_all(
    acme: Caller, globex: Caller, operator: dict[str, str], yard: BatchYard
) -> None:
    for caller in (acme, globex):
        batch_id = await yard.plan(lines(4), tenant=caller.tenant)
        await yard.run(batch_id, lambda _: good())
        await yard.finaliser.finish(batch_id)
    start = int(time.time()) // 86_400 * 86_400
    groups: dict[str, Any] = {"start_time": start, "group_by[]": ["project_id", "line_item"]}
    both = {**groups, "project_ids[]": [acme.tenant, globex.tenant]}

    own = await acme.http.get("/v1/organization/costs", params=groups)
    every = await acme.http.get("/v1/organization/costs", params=both, headers=operator)
    foreign = await acme.http.get("/v1/organization/costs", params=both)
    usage = await acme.http.get(
        "/v1/organization/usage/completions",
        params={"start_time": start, "group_by[]": ["project_id", "model"]},
    )

    (mine,) = own.json()["data"][0]["results"]
    assert (mine["project_id"], mine["line_item"]) == (acme.tenant, "m@gpu")
    assert mine["gpu_seconds"] == 4 * MICROS / 1e6
    assert mine["amount"] == {"value": 4 * MICROS / 1e9, "currency": "usd"}
    results = every.json()["data"][0]["results"]
    assert {one["project_id"] for one in results} == {acme.tenant, globex.tenant}
    assert (foreign.status_code, foreign.json()["error"]["param"]) == (400, "project_ids")
    (used,) = usage.json()["data"][0]["results"]
    assert (used["project_id"], used["model"]) == (acme.tenant, "m")
    assert (used["num_model_requests"], used["input_tokens"], used["output_tokens"]) == (4, 12, 8)
    batch = (await acme.http.get("/v1/batches")).json()["data"][0]
    assert batch["cost"]["gpu_seconds"] == 4 * MICROS / 1e6
    sdk = acme.openai.with_options(admin_api_key=acme.key)
    found = await sdk.admin.organization.usage.costs(start_time=start, group_by=["project_id"])
    assert found.data[0].results[0].project_id == acme.tenant
