"""What `explain` says in each situation of a batch."""

import re
import secrets
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from redis.asyncio import Redis

from dispatcher.predictions import Predictions
from shared.lifecycle import Event
from shared.slices import ReleaseReason
from shared.state import State
from tests.batches import JOB, claim, feed, in_progress, part, validating
from tests.integration.gateway.conftest import Caller, Gateway


@pytest.fixture
def lane() -> str:
    """Nobody else's."""
    return f"m@{secrets.token_hex(4)}"


@pytest.fixture
async def behind(gateway: Gateway) -> AsyncIterator["Redis[str]"]:
    client: Redis[str] = Redis.from_url(
        gateway.settings.redis_url.get_secret_value(), decode_responses=True
    )
    yield client
    await client.aclose()


async def test_a_new_batch_waits_for_its_plan(acme: Caller, gateway_state: State) -> None:
    batch_id = await validating(gateway_state, tenant=acme.tenant)

    found = await _explained(acme, batch_id)

    assert found["waits_for"] == {
        "code": "planning",
        "message": "The input is being read and checked.",
    }
    assert found["summary"] == "The input is being read and checked."
    assert (found["ahead"], found["lane"], found["predicted"]) == (None, None, None)
    await gateway_state.controls.pause(batch_id)
    assert (await _explained(acme, batch_id))["waits_for"]["code"] == "paused"
    await gateway_state.apply(batch_id, Event.CANCEL_REQUESTED)
    assert (await _explained(acme, batch_id))["waits_for"]["code"] == "cancelling"


async def test_what_is_held_back_because_engines_died_says_so(
    acme: Caller, gateway_state: State, lane: str, behind: "Redis[str]"
) -> None:
    batch_id = await in_progress(gateway_state, tenant=acme.tenant, lane=lane)
    day = int(time.time()) // 86_400
    before = await _explained(acme, batch_id)

    await behind.hset(f"{{batchyard}}:engine-deaths:{day}", acme.tenant, "200")
    found = await _explained(acme, batch_id)

    assert before["waits_for"]["code"] != "engine_deaths"
    assert found["waits_for"]["code"] == "engine_deaths"
    assert "until midnight UTC" in found["waits_for"]["message"]
    assert found["summary"].startswith("As many engines have died of your requests today")


async def test_it_says_who_gives_way_when_the_window_closes_soon(
    acme: Caller, gateway_state: State
) -> None:
    # The model takes live calls, and its entry does not say who gives way.
    lane, now = f"tiny@{secrets.token_hex(4)}", int(time.time())
    soon, later = [
        await in_progress(gateway_state, tenant=acme.tenant, lane=lane, expires_at=now + seconds)
        for seconds in (600, 3600)
    ]

    said, nothing = [(await _explained(acme, one))["summary"] for one in (soon, later)]

    assert said.endswith("Its window closes soon, and it still makes room for live calls.")
    assert "closes soon" not in nothing


async def test_it_says_how_far_the_lanes_start_has_come(
    acme: Caller, gateway_state: State, lane: str
) -> None:
    batch_id = await in_progress(gateway_state, tenant=acme.tenant, lane=lane)
    await feed(gateway_state, batch_id, slices=1, lane=lane)

    none = await _explained(acme, batch_id)
    await gateway_state.lanes.open_job(lane, "", JOB)
    submitted = await _explained(acme, batch_id)
    await gateway_state.lanes.beat(lane, JOB, rows_wanted=64)
    starting = await _explained(acme, batch_id)

    assert _waits(none) == ("lane_starting", "A lane job is about to be submitted.")
    assert none["lane"]["job"] is None
    code, message = _waits(submitted)
    assert code == "lane_starting"
    assert re.match(r"The lane job was submitted \d+ seconds ago and is starting", message)
    assert _waits(starting) == ("engine_starting", "The lane's engine is starting.")
    assert starting["lane"]["job"] == JOB
    assert starting["slices"] == {
        "total": 2,
        "pending": 1,
        "ready": 1,
        "running": 0,
        "committed": 0,
    }


async def test_it_says_which_pool_is_full_and_where_the_rows_run_instead(
    acme: Caller, gateway_state: State, lane: str
) -> None:
    batch_id = await in_progress(gateway_state, tenant=acme.tenant, lane=lane)
    await feed(gateway_state, batch_id, slices=1, lane=lane)
    await gateway_state.lanes.open_job(lane, "", JOB)
    pool = lane.removeprefix("m@")

    async def explained(**fields: float | str) -> dict[str, Any]:
        await gateway_state.lanes.beat(lane, JOB, rows_wanted=64, **fields)
        return await _explained(acme, batch_id)

    full = await explained(runs_on="", full=pool, spills_at=time.time() + 3600)
    both = await explained(runs_on="", full=f"{pool} l4", spills_at=0)
    await claim(gateway_state, lane=lane)
    spilled = await explained(runs_on="l4", full=pool, spills_at=0)
    warm = await explained(runs_on="l4", full="", spills_at=0)
    at_home = await explained(runs_on=pool, full="", spills_at=0)

    code, message = _waits(full)
    assert code == "no_room"
    assert message.startswith(f"Pool {pool} has no room for the engine; the next pool is asked in ")
    assert "runs_on" not in full["lane"]
    assert _waits(both) == ("no_room", f"Pools {pool}, l4 have no room for the engine.")
    assert spilled["waits_for"] is None
    assert spilled["summary"] == (
        f"1 slice running. On pool l4, because pool {pool} has no room for the engine."
    )
    assert spilled["lane"]["runs_on"] == "l4"
    assert (
        warm["summary"] == f"1 slice running. On pool l4, while the engine of pool {pool} starts."
    )
    assert at_home["summary"] == "1 slice running."


async def test_another_lane_job_knows_nothing_of_the_last_ones_pools(
    gateway_state: State, lane: str
) -> None:
    await gateway_state.lanes.open_job(lane, "", JOB)
    await gateway_state.lanes.beat(
        lane, JOB, rows_wanted=64, runs_on="l4", full="h100", spills_at=9
    )
    found = await gateway_state.lanes.job(lane)

    await gateway_state.lanes.open_job(lane, JOB, "job-2")
    after = await gateway_state.lanes.job(lane)

    assert (found.runs_on, found.full, found.spills_at) == ("l4", ("h100",), 9)
    assert (after.runs_on, after.full, after.spills_at) == ("", (), 0)


async def test_it_says_that_a_lane_job_is_silent(
    acme: Caller, gateway_state: State, behind: "Redis[str]", lane: str
) -> None:
    batch_id = await in_progress(gateway_state, tenant=acme.tenant, lane=lane)
    await gateway_state.lanes.open_job(lane, "", JOB)
    await behind.hset(
        f"{{batchyard}}:lane:{lane}:job", "beat_at_ms", str(int((time.time() - 40) * 1000))
    )

    code, message = _waits(await _explained(acme, batch_id))

    assert code == "lane_silent"
    assert "not reported for 40 seconds" in message or "for 41 seconds" in message


async def test_it_says_that_the_engine_has_failed_and_with_which_words(
    acme: Caller, gateway_state: State, lane: str
) -> None:
    batch_id = await in_progress(gateway_state, tenant=acme.tenant, lane=lane)
    await feed(gateway_state, batch_id, lane=lane)
    [first, second] = await claim(gateway_state, slices=2, lane=lane)
    await gateway_state.lanes.beat(lane, JOB, rows_wanted=64)
    for one in (first, second):
        await gateway_state.claims.release(one, strikes=1, reason=ReleaseReason.ENGINE_DIED)

    died = await _explained(acme, batch_id)
    await gateway_state.lanes.fail(lane, "CUDA out of memory", job=JOB)
    failed = await _explained(acme, batch_id)

    code, message = _waits(died)
    assert (code, "is being restarted" in message) == ("engine_failed", True)
    assert _waits(failed) == (
        "engine_failed",
        "The lane's engine cannot start: CUDA out of memory",
    )


async def test_it_says_what_is_before_it_and_when_it_may_run(
    acme: Caller, globex: Caller, gateway_state: State, lane: str
) -> None:
    other = await in_progress(gateway_state, tenant=globex.tenant, slices=5, lane=lane)
    own = await in_progress(gateway_state, tenant=acme.tenant, slices=1, lane=lane)
    batch_id = await in_progress(gateway_state, tenant=acme.tenant, slices=3, lane=lane)
    await gateway_state.lanes.feed(
        lane, [*(f"{other}:{index}" for index in range(5)), f"{own}:0", f"{batch_id}:0"]
    )
    await claim(gateway_state, slices=2, lane=lane)
    await gateway_state.lanes.beat(lane, JOB, rows_wanted=64, rate=2.3)
    await Predictions(gateway_state).look()
    now = time.time()

    found = await _explained(acme, batch_id)

    assert _waits(found) == (
        "others",
        "Other batches are running on the lane. Ahead of this one: 1 slice of your other batches "
        "and under 100 rows of other tenants. Tenants share a lane by predicted tokens.",
    )
    assert found["ahead"] == {"slices": 1, "rows": 10, "tokens": 50, "others": "under 100"}
    assert found["lane"] == {
        "name": lane,
        "job": JOB,
        "rows_per_second": 2.0,
        "batches": 2,
        "missing_rows": 40,
        "others": "under 100",
    }
    assert found["slices"]["pending"] == 2
    # 10 own rows are ahead and a class that counts as 30.
    assert found["predicted"]["start_at"] == pytest.approx(now + 20, abs=3)
    told = (await gateway_state.batches.get(batch_id)).to_openai().predicted
    assert told is not None
    assert told.model_dump().items() <= found["predicted"].items()
    assert now < found["predicted"]["finish_at"] < found["predicted"]["finish_p80_at"] < now + 120


async def test_no_tenant_can_tell_two_loads_of_one_class_apart(
    acme: Caller, globex: Caller, gateway_state: State, lane: str
) -> None:
    running = await in_progress(gateway_state, tenant=globex.tenant, slices=2, lane=lane)
    more = await in_progress(gateway_state, tenant=globex.tenant, slices=5, lane=lane)
    batch_id = await in_progress(gateway_state, tenant=acme.tenant, slices=3, lane=lane)

    ends: list[float] = []

    async def seen(*ahead: str, rate: float) -> dict[str, Any]:
        await gateway_state.lanes.feed(lane, [*ahead, f"{batch_id}:0"])
        await claim(gateway_state, lane=lane)
        await gateway_state.lanes.beat(lane, JOB, rows_wanted=64, rate=rate)
        await Predictions(gateway_state).look()
        now = time.time()
        found = await _explained(acme, batch_id)
        predicted = found.pop("predicted")
        assert predicted["start_at"] == pytest.approx(now + 15, abs=3)
        ends.append(predicted["finish_at"] - now)
        return found

    little = await seen(f"{running}:0", f"{running}:1", rate=2.0)
    much = await seen(f"{running}:1", *(f"{more}:{index}" for index in range(5)), rate=4.9)

    assert little == much
    assert ends[0] == pytest.approx(ends[1], abs=3)


async def test_a_running_batch_waits_for_nothing_and_shows_where_it_runs(
    acme: Caller, gateway_state: State, lane: str
) -> None:
    batch_id = await in_progress(gateway_state, tenant=acme.tenant, slices=3, lane=lane)
    await feed(gateway_state, batch_id, slices=3, lane=lane)
    done, _ = await claim(gateway_state, slices=2, lane=lane)
    await gateway_state.lanes.beat(lane, JOB, rows_wanted=64, rate=2.0)
    await gateway_state.claims.commit(done, part(done))
    await Predictions(gateway_state).look()

    found = await _explained(acme, batch_id)

    assert found["waits_for"] is None
    assert found["summary"] == "1 slice running."
    assert found["slices"] == {
        "total": 3,
        "pending": 0,
        "ready": 1,
        "running": 1,
        "committed": 1,
    }
    assert found["running"] == [
        {
            "index": 1,
            "job": JOB,
            "attempts": 1,
            "strikes": 0,
            "reason": None,
            "given_back_at": None,
        }
    ]
    assert found["predicted"]["start_at"] is None
    assert time.time() < found["predicted"]["finish_at"] < time.time() + 60
    assert found["predicted"]["rests_on"]["pace"] == "lane"


async def test_it_says_which_slices_were_run_again_and_why(
    acme: Caller, gateway_state: State, lane: str
) -> None:
    batch_id = await in_progress(gateway_state, tenant=acme.tenant, slices=4, lane=lane)
    await feed(gateway_state, batch_id, slices=4, lane=lane)
    first, second, third, _ = await claim(gateway_state, slices=4, lane=lane, lease_seconds=0)
    await gateway_state.claims.release(first, strikes=1, reason=ReleaseReason.ENGINE_DIED)
    await gateway_state.claims.release(second)
    await gateway_state.claims.renew([third], lease_seconds=60)
    await gateway_state.claims.reap(lane)
    await gateway_state.claims.reap(lane, all_claims=True)
    await claim(gateway_state, slices=1, lane=lane)

    found = await _explained(acme, batch_id)

    assert found["retried_slices"] == 4
    retries = {
        one["index"]: (one["reason"], one["strikes"], one["job"]) for one in found["retries"]
    }
    assert retries == {
        0: ("engine_died", 1, JOB),
        1: ("not_run", 0, JOB),
        2: ("job_ended", 0, JOB),
        3: ("claim_expired", 0, JOB),
    }
    assert sum(one["attempts"] for one in found["retries"]) == 5
    assert all(abs(one["given_back_at"] - time.time()) < 60 for one in found["retries"])


async def test_a_paused_batch_waits_to_be_resumed(
    acme: Caller, gateway_state: State, lane: str
) -> None:
    batch_id = await in_progress(gateway_state, tenant=acme.tenant, lane=lane)
    await feed(gateway_state, batch_id, lane=lane)
    await claim(gateway_state, lane=lane)
    await gateway_state.controls.pause(batch_id)

    found = await _explained(acme, batch_id)

    assert found["paused"] is True
    assert _waits(found) == (
        "paused",
        "The batch is paused until it is resumed. 1 slice will still end.",
    )
    assert (found["predicted"], found["ahead"]) == (None, None)


async def test_a_closing_batch_waits_for_what_runs_and_then_for_its_files(
    acme: Caller, gateway_state: State, lane: str
) -> None:
    batch_id = await in_progress(gateway_state, tenant=acme.tenant, slices=1, lane=lane)
    await feed(gateway_state, batch_id, slices=1, lane=lane)
    [one] = await claim(gateway_state, lane=lane)
    await gateway_state.apply(batch_id, Event.WINDOW_CLOSED)

    running = await _explained(acme, batch_id)
    await gateway_state.claims.commit(one, part(one))
    written = await _explained(acme, batch_id)
    await gateway_state.apply(batch_id, Event.EXPIRY_COMMITTED)
    ended = await _explained(acme, batch_id)

    assert _waits(running) == ("finalizing", "1 slice must end first.")
    assert _waits(written) == ("finalizing", "The result files are being written.")
    assert (ended["waits_for"], ended["summary"]) == (None, "The batch has ended as expired.")


async def test_a_failed_batch_says_why(acme: Caller, gateway_state: State) -> None:
    batch_id = await validating(gateway_state, tenant=acme.tenant)
    await gateway_state.apply(batch_id, Event.INPUT_REJECTED, {"first_error": "It is empty."})

    assert (await _explained(acme, batch_id))["summary"] == (
        "The batch has ended as failed. It is empty."
    )


async def test_the_answer_is_short_for_a_large_batch(
    acme: Caller, gateway_state: State, lane: str
) -> None:
    batch_id = await in_progress(gateway_state, tenant=acme.tenant, slices=900, lane=lane)
    for start in (0, 90):
        members = [f"{batch_id}:{index}" for index in range(start, start + 90)]
        await gateway_state.lanes.feed(lane, members)
        await claim(gateway_state, slices=90, lane=lane, rows=10_000)
        if start == 0:
            await gateway_state.claims.reap(lane, all_claims=True)

    found = await acme.http.get(f"/v1/batches/{batch_id}/explain")

    assert len(found.content) < 10_000
    assert found.json()["retried_slices"] == 90
    assert len(found.json()["retries"]) == len(found.json()["running"]) == 20


async def test_nobody_learns_of_another_tenants_batch(
    acme: Caller, globex: Caller, gateway_state: State
) -> None:
    batch_id = await validating(gateway_state, tenant=acme.tenant)

    assert (await globex.http.get(f"/v1/batches/{batch_id}/explain")).status_code == 404


async def test_with_several_lanes_it_shows_each_and_the_last_one_decides(
    acme: Caller, globex: Caller, gateway_state: State, lane: str
) -> None:
    other = f"n{lane}"
    before = await in_progress(gateway_state, tenant=globex.tenant, slices=1, lane=other)
    batch_id = await in_progress(
        gateway_state, tenant=acme.tenant, slices=3, lane=f"{lane} {other}"
    )
    await gateway_state.lanes.feed(other, [f"{before}:0", f"{batch_id}:1"])
    await feed(gateway_state, batch_id, slices=1, lane=lane)
    for name, rate in ((lane, 10.0), (other, 1.0)):
        await gateway_state.lanes.open_job(name, "", JOB)
        await gateway_state.lanes.beat(name, JOB, rows_wanted=64, rate=rate)
    await Predictions(gateway_state).look()

    waiting = await _explained(acme, batch_id)
    await claim(gateway_state, slices=1, lane=lane)
    running = await _explained(acme, batch_id)
    await gateway_state.fail_lane(lane, batch_id, "no such weights", {})
    failed = await _explained(acme, batch_id)

    assert (waiting["lane"], waiting["ahead"]) == (None, None)
    assert _waits(waiting) == ("engine_starting", f"Lane {lane}: The lane's engine is starting.")
    first, second = waiting["lanes"]
    assert (first["name"], first["rows_left"], first["pending"], first["ready"]) == (lane, 20, 1, 1)
    assert (second["name"], second["rows_left"], second["ready"]) == (other, 10, 1)
    assert second["ahead"] == {"slices": 0, "rows": 0, "tokens": 0, "others": "under 100"}
    assert first["ahead"] == {"slices": 0, "rows": 0, "tokens": 0, "others": "none"}
    assert first["finish_at"] < second["finish_at"] < second["finish_p80_at"]
    assert waiting["predicted"]["finish_at"] == second["finish_at"]
    assert waiting["slices"]["ready"] == 2
    assert (running["waits_for"], running["lanes"][0]["running"]) == (None, 1)
    assert running["lanes"][1]["waits_for"]["code"] == "engine_starting"
    lost = failed["lanes"][0]
    assert (lost["failed"], lost["rows_left"], lost["finish_at"]) == ("no such weights", 0, None)
    assert failed["request_counts"] == {"total": 30, "completed": 0, "failed": 20}


async def _explained(caller: Caller, batch_id: str) -> dict[str, Any]:
    answer = await caller.http.get(f"/v1/batches/{batch_id}/explain")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def _waits(found: dict[str, Any]) -> tuple[str, str]:
    assert found["summary"] == found["waits_for"]["message"]
    return found["waits_for"]["code"], found["waits_for"]["message"]
