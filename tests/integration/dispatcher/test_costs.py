"""What a batch has cost: counted with its parts, and added to its day once, whatever happens."""

import time
from dataclasses import replace

import pytest

from shared.ledger.parts import drop_part
from shared.lifecycle import Event, Status
from shared.slices import ReleaseReason
from shared.spent import GpuUse, ModelUse
from shared.state import State
from tests.batches import claim, claimed, in_progress, part
from tests.integration.dispatcher.conftest import MICROS, BatchYard, a_planner, bad, good, lines

LANE = "m@gpu"


async def test_a_batch_has_the_cost_of_its_rows_in_its_object_and_in_its_last_event(
    yard: BatchYard,
) -> None:
    batch_id = await yard.plan(lines(5))

    await yard.run(batch_id, lambda row: bad() if row == 1 else good())
    running = (await yard.state.batches.get(batch_id)).to_openai().cost
    await yard.finaliser.finish(batch_id)

    cost = (await yard.state.batches.get(batch_id)).to_openai().cost
    assert cost is not None
    assert cost == running
    assert (cost.gpu_seconds, cost.by_pool) == (4 * MICROS / 1e6, {"gpu": 4 * MICROS / 1e6})
    assert cost.amount is not None
    # 3.6 an hour are a thousandth a second.
    assert cost.amount.value == pytest.approx(4 * MICROS / 1e9)
    assert cost.amount.currency == "usd"
    entries = await yard.state.outbox.read("events", limit=100, wait_seconds=0)
    last = [entry for entry in entries if entry.snapshot()["id"] == batch_id][-1]
    assert last.fields["type"] == "batch.completed"
    assert last.snapshot()["spent"] == f'{{"{LANE}":{4 * MICROS}}}'
    assert "prices" in last.snapshot()


async def test_an_ended_batch_is_added_to_its_day_once(yard: BatchYard) -> None:
    batch_id = await yard.plan(lines(4), tenant="initech")
    await yard.run(batch_id, lambda _: good())
    before = await _today(yard.state)

    await yard.finaliser.finish(batch_id)
    await yard.finaliser.finish(batch_id)

    day, number = await _today(yard.state), 4 * MICROS
    assert before == ([], [])
    assert day[0] == [GpuUse("initech", LANE, number, {"USD": number / 1e9})]
    assert day[1] == [ModelUse("initech", "m", "/v1/chat/completions", 4, 12, 0, 8)]


@pytest.mark.parametrize("event", [Event.LANE_FAILED, Event.INPUT_LOST])
async def test_a_batch_that_fails_is_added_with_what_it_had(state: State, event: Event) -> None:
    first, _ = await claimed(state, slices=2)
    await state.claims.commit(first, part(first)._replace(spent="gpu=70"))

    await state.apply(first.batch_id, event)

    assert [use.micros for use in (await _today(state))[0]] == [70]


async def test_a_part_counts_once_however_often_it_is_committed(state: State) -> None:
    first, second = await claimed(state, slices=2)
    known = part(first)._replace(spent="gpu=70,l4=5")

    outcomes = [await state.claims.commit(first, known) for _ in range(2)]
    late = await state.claims.commit(first, known._replace(key="other"))
    await state.claims.commit(second, part(second)._replace(spent="gpu=30"))

    record = await state.batches.get(first.batch_id)
    cost = record.to_openai().cost
    assert (outcomes, late) == (["ok", "ok"], "committed")
    assert cost is not None
    assert cost.by_pool == {"gpu": 100 / 1e6, "l4": 5 / 1e6}
    # Nothing has a price.
    assert cost.amount is None
    [gpu, l4] = await state.engines.seconds(int(time.time()) // 86_400)
    assert (gpu.lane, gpu.rows, l4.lane, l4.rows) == (LANE, 100, "m@l4", 5)


async def test_what_was_kept_counts_with_the_run_that_goes_on(state: State) -> None:
    batch_id = await in_progress(state, slices=1)
    await state.lanes.feed(LANE, [f"{batch_id}:0"])
    [first] = await claim(state)
    kept = part(first, rows=4)._replace(spent="gpu=40")
    await state.claims.release(first, kept=kept, reason=ReleaseReason.ENGINE_UNAVAILABLE)
    before = (await state.batches.get(batch_id)).to_openai().cost

    await state.lanes.feed(LANE, [f"{batch_id}:0"])
    [second] = await claim(state)
    whole = part(second)._replace(spent="gpu=100")
    await state.claims.commit(second, whole)

    after = (await state.batches.get(batch_id)).to_openai().cost
    assert before is None
    assert second.kept == kept
    assert after is not None
    assert after.gpu_seconds == 100 / 1e6


async def test_a_part_that_is_taken_back_takes_its_cost_with_it(yard: BatchYard) -> None:
    batch_id = await yard.plan(lines(6))
    await yard.run(batch_id, lambda _: good())
    broken = (await yard.state.slices.parts(batch_id))[0]

    await drop_part(yard.state, yard.storage, batch_id, 0, broken)
    less = (await yard.state.batches.get(batch_id)).to_openai().cost
    await yard.run(batch_id, lambda _: good())
    await yard.finaliser.finish(batch_id)

    record = await yard.state.batches.get(batch_id)
    again = record.to_openai().cost
    assert record.status is Status.COMPLETED
    assert less is not None
    assert less.gpu_seconds == 3 * MICROS / 1e6
    assert again is not None
    assert again.gpu_seconds == 6 * MICROS / 1e6


async def _today(state: State) -> tuple[list[GpuUse], list[ModelUse]]:
    [day] = await state.spending.days([int(time.time()) // 86_400])
    return list(day.gpus), list(day.models)


async def test_a_lane_learns_what_its_tokens_cost_and_how_well_it_predicts(
    yard: BatchYard,
) -> None:
    first = await yard.plan(lines(4))
    unknown = (await yard.state.lanes.cost(LANE)).micros_per_token
    await yard.run(first, lambda _: good())
    await yard.finaliser.finish(first)
    learned = await yard.state.lanes.cost(LANE)
    second = await _planned_later(yard, lines(8))
    predicted = (await yard.state.batches.get(second)).number("predicted_micros")

    # Rows that cost twice as much as those before.
    await yard.run(second, lambda _: (*good()[:2], 2 * MICROS))  # type: ignore[index]  # an answer
    await yard.finaliser.finish(second)

    assert (unknown, learned.error) == (0, None)
    assert predicted == pytest.approx(8 * MICROS, rel=0.01)
    assert (await yard.state.lanes.cost(LANE)).error == pytest.approx(0.5, rel=0.01)


async def _planned_later(yard: BatchYard, body: bytes) -> str:
    """By a planner that reads the lane now."""
    catalog = yard.planner._catalog  # noqa: SLF001  # the yard's own
    return await replace(yard, planner=a_planner(yard.state, yard.storage, catalog)).plan(body)
