"""What an engine has answered is not run again, whoever dies."""

import json
import os
import signal

from shared.lifecycle import Status
from tests.eventually import eventually
from tests.integration.worker.conftest import StubFleet, requests

_ROWS = 1_000


async def test_after_the_kill_of_a_lane_job_no_row_that_was_answered_runs_again(
    stub_fleet: StubFleet,
) -> None:
    fleet, engine = stub_fleet, stub_fleet.engine
    fleet.set_seats(32)
    engine.take_seconds(0.3)
    batch_id = await fleet.submit(requests(_ROWS))
    await eventually(lambda: engine.rows_seen().total() > _ROWS / 4)

    jobs = json.loads((fleet.catalog_file.parent / "jobs.json").read_text())
    for pid in jobs.values():
        os.kill(pid, signal.SIGKILL)
    record = await fleet.end_of(batch_id)

    names = [f"row-{row}" for row in range(_ROWS)]
    assert len(jobs) == 1
    assert record.status is Status.COMPLETED
    assert [line["custom_id"] for line in await fleet.results(record, "output")] == names
    epochs = await fleet.state.slices.epochs(batch_id)
    assert any(epoch > 1 for epoch in epochs.values())
    # The engine's answers outlive the lane job, and so do the rows that were in the engine.
    assert engine.rows_run_after_their_answer() == {}
    assert engine.rows_seen() == dict.fromkeys(names, 1)
