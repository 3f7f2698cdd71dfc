"""What batches are told of their ends while they run, and what their lanes learn from it."""

import json
import time

import pytest

from dispatcher.predictions import Predictions
from shared.lifecycle import Event
from shared.openai.shapes import Predicted
from shared.ordering.pace import Done, Pace, to_text
from shared.slices import Claim
from shared.state import State
from tests.batches import JOB, LANE, part
from tests.integration.dispatcher.conftest import BatchYard, lines

#: A hundred predicted tokens a second, of which a half are used.
_PACE = Pace().learn({"": Done(100, 10_000, 5_000)}, 100.0)
_ROWS = 100


async def _runs(state: State, lane: str = LANE) -> None:
    """The lane has a job, and its engine a pace."""
    await state.lanes.open_job(lane, "", JOB)
    await state.lanes.beat(lane, JOB, rows_wanted=0, pace=to_text(_PACE), seats=1)


async def _told(state: State, batch_id: str) -> Predicted | None:
    return (await state.batches.get(batch_id)).to_openai().predicted


async def _commit(state: State, *claims: Claim) -> None:
    for claim in claims:
        assert await state.claims.commit(claim, part(claim)) == "ok"


async def test_a_batch_is_told_a_range_and_what_it_rests_on_from_its_plan_on(
    yard: BatchYard,
) -> None:
    await _runs(yard.state)

    batch_id = await yard.plan(lines(_ROWS, max_tokens=1000))

    told, now = await _told(yard.state, batch_id), time.time()
    assert told is not None
    # 100 rows of a little more than a thousand tokens, and a range that is only supposed.
    assert now + 1000 < told.finish_at < now + 1200
    assert told.finish_p80_at == pytest.approx(now + 1.7 * (told.finish_at - now), rel=0.02)
    assert told.rests_on.model_dump() == {"pace": "lane", "batches": 0, "start_seconds": 0}


async def test_what_is_told_follows_the_batch_and_events_carry_it(yard: BatchYard) -> None:
    await _runs(yard.state)
    batch_id = await yard.plan(lines(_ROWS, max_tokens=1000))
    first = await _told(yard.state, batch_id)
    claims = await yard.claim(batch_id)
    await _commit(yard.state, *claims[: len(claims) // 2])

    await Predictions(yard.state).look()

    told = await _told(yard.state, batch_id)
    assert first is not None
    assert told is not None
    assert told.finish_at < first.finish_at
    assert told.rests_on.pace == "batch"
    await _commit(yard.state, *claims[len(claims) // 2 :])
    entries = await yard.state.outbox.read("events", limit=99, wait_seconds=0.001)
    last = entries[-1].snapshot()
    assert json.loads(last["predicted"])["finish_at"] == told.finish_at
    assert await _told(yard.state, batch_id) is None


async def test_while_nothing_happens_a_look_writes_nothing(yard: BatchYard) -> None:
    await _runs(yard.state)
    batch_id = await yard.plan(lines(_ROWS, max_tokens=1000))
    claims = await yard.claim(batch_id)
    await _commit(yard.state, *claims[:2])
    predictions = Predictions(yard.state)
    await predictions.look()
    before = await yard.state.batches.get(batch_id)
    # What another one comes with cannot hold up rows that are claimed.
    await yard.plan(lines(_ROWS, max_tokens=1000), tenant="other")

    for _ in range(3):
        await predictions.look()

    assert (await yard.state.batches.get(batch_id)).fields == before.fields


async def test_a_lane_learns_from_each_batch_how_far_it_was_off(
    yard: BatchYard, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The last plan is to see what the first batch has taught.
    monkeypatch.setattr("dispatcher.lane_outlooks._FRESH_SECONDS", 0.0)
    await _runs(yard.state)
    batch_id = await yard.plan(lines(_ROWS, max_tokens=1000))
    claims = await yard.claim(batch_id)
    await _commit(yard.state, *claims[:20])
    await Predictions(yard.state).look()

    await _commit(yard.state, *claims[20:])

    await yard.plan(lines(_ROWS, max_tokens=1000))
    ended = (await yard.state.lanes.outlook(LANE)).ended
    assert [(one.like.tenant, one.like.stage, one.like.rows) for one in ended] == [
        ("acme", "new", _ROWS),
        ("acme", "running", _ROWS),
    ]
    assert all(0 <= one.took < 60 for one in ended)
    after = await _told(yard.state, await yard.plan(lines(_ROWS, max_tokens=1000)))
    assert after is not None
    assert after.rests_on.batches == 1
    totals = {(one.what, one.whose): one.number for one in (await yard.state.census.take()).totals}
    # A thousand seconds were predicted, and it took hardly one.
    assert (totals["ended_p50", "creation"], totals["ended_p50", "running"]) == (1, 1)
    assert totals["end_error", "creation"] > 10_000


async def test_a_paused_batch_is_told_nothing_and_nothing_is_learned_from_it(
    yard: BatchYard,
) -> None:
    await _runs(yard.state)
    batch_id = await yard.plan(lines(_ROWS, max_tokens=1000))
    claims = await yard.claim(batch_id)
    await _commit(yard.state, *claims[:20])
    await yard.state.controls.pause(batch_id)

    await Predictions(yard.state).look()

    assert "predicted" not in (await yard.state.batches.get(batch_id)).fields
    await yard.state.controls.resume(batch_id)
    await Predictions(yard.state).look()
    assert await _told(yard.state, batch_id) is not None
    await _commit(yard.state, *claims[20:])
    ended = (await yard.state.lanes.outlook(LANE)).ended
    assert [one.like.stage for one in ended] == ["running"]


async def test_a_batch_is_warned_as_soon_as_it_may_be_late_and_no_longer(yard: BatchYard) -> None:
    await _runs(yard.state)
    soon = int(time.time()) + 2500
    batch_id = await yard.plan(lines(_ROWS, max_tokens=1000), expires_at=soon)
    assert (await yard.state.batches.get(batch_id)).to_openai().warnings == []
    other = await yard.plan(lines(10 * _ROWS, max_tokens=1000), tenant="other")
    predictions = Predictions(yard.state)

    await predictions.look()

    warned = (await yard.state.batches.get(batch_id)).to_openai().warnings
    assert [one.code for one in warned] == ["deadline_at_risk"]
    await yard.state.apply(other, Event.CANCEL_REQUESTED)
    await predictions.look()
    assert (await yard.state.batches.get(batch_id)).to_openai().warnings == []
