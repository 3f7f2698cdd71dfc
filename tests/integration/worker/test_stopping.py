"""A batch that is paused or cancelled stops at once, and nothing that was answered runs again."""

import asyncio
import time

from gateway.pausing import rows_in_engine
from shared.ledger.commits import cancel
from shared.lifecycle import Status
from tests.eventually import eventually
from tests.integration.worker.conftest import StubFleet, requests

#: What the engine computes at once, and what lane jobs send it: a quarter more.
_SEATS = 32
_CALL_SECONDS = 0.5
_IN_ENGINE = 40


async def test_a_pause_holds_for_all_rows_that_are_not_in_the_engine_and_says_how_many_are(
    stub_fleet: StubFleet,
) -> None:
    fleet, engine = stub_fleet, stub_fleet.engine
    batch_id = await _running(fleet, 2_500)

    began = time.monotonic()
    left = await _pause(fleet, batch_id)
    answered_in = time.monotonic() - began
    seen = engine.rows_seen().total()
    await eventually(lambda: fleet.is_free(batch_id))
    ended_in = time.monotonic() - began

    # Two waves and the lane job: each may have filled the engine, and what waits in front of it.
    assert 0 < left <= 10 * _IN_ENGINE
    assert engine.rows_seen().total() - seen <= left
    # Far less where nothing else is busy. Before, 2,500 rows ran for 20 seconds.
    assert answered_in < 20
    assert ended_in < 30
    record = await fleet.state.batches.get(batch_id)
    assert record.status is Status.IN_PROGRESS

    engine.take_seconds(0.01)
    await fleet.state.controls.resume(batch_id)
    record = await fleet.end_of(batch_id)

    assert record.status is Status.COMPLETED
    names = [f"row-{row}" for row in range(2_500)]
    assert [line["custom_id"] for line in await fleet.results(record, "output")] == names
    # Not one row that was answered has run again.
    assert engine.rows_seen() == dict.fromkeys(names, 1)
    assert engine.rows_run_after_their_answer() == {}


async def test_a_paused_batch_that_is_cancelled_has_all_that_was_answered_in_its_output(
    stub_fleet: StubFleet,
) -> None:
    fleet, engine = stub_fleet, stub_fleet.engine
    batch_id = await _running(fleet, 600)
    await _pause(fleet, batch_id)
    await eventually(lambda: fleet.is_free(batch_id))

    await cancel(fleet.state, fleet.storage, batch_id)
    record = await fleet.end_of(batch_id)

    output, error = await fleet.results(record, "output"), await fleet.results(record, "error")
    assert record.status is Status.CANCELLED
    assert {line["custom_id"] for line in output} == engine.rows_seen().keys()
    assert len(output) == record.number("completed") > 0
    assert len(output) + len(error) == 600


async def test_a_cancellation_of_twenty_thousand_rows_is_soon_over(stub_fleet: StubFleet) -> None:
    fleet = stub_fleet
    batch_id = await _running(fleet, 20_000)

    began = time.monotonic()
    await cancel(fleet.state, fleet.storage, batch_id)
    record = await fleet.end_of(batch_id)
    seconds = time.monotonic() - began

    output, error = await fleet.results(record, "output"), await fleet.results(record, "error")
    assert record.status is Status.CANCELLED
    assert len(output) == record.number("completed") > 0
    assert len(output) + len(error) == 20_000
    # Far less where nothing else is busy; `python -m benchmarks ending` measures it.
    assert seconds < 60


async def _running(fleet: StubFleet, rows: int) -> str:
    """A batch of which some rows are answered and some are in the engine."""
    fleet.set_seats(_SEATS)
    fleet.engine.take_seconds(_CALL_SECONDS)
    batch_id = await fleet.submit(requests(rows))
    await eventually(lambda: fleet.engine.rows_answered() > 3 * _IN_ENGINE)
    return batch_id


async def _pause(fleet: StubFleet, batch_id: str) -> int:
    await fleet.state.controls.pause(batch_id)
    batch = await fleet.state.batches.get(batch_id)
    return await asyncio.wait_for(rows_in_engine(fleet.state, batch), timeout=60)
