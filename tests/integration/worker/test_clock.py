"""The clock of a lane job and its engine is set while rows run."""

import time
from pathlib import Path

import pytest

from cli import servers
from shared.storage import Storage
from tests.clock import Clock
from tests.eventually import eventually
from tests.integration.worker.conftest import StubFleet, requests

pytestmark = pytest.mark.timeout(300)

_ROWS = 400
_STEP_SECONDS = 60


@pytest.fixture
def clock(
    redis_server: servers.Redis, storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Clock:
    """That of all processes that the test starts from now on; Redis and S3 have the true one."""
    assert redis_server.child.is_alive()
    assert storage.bucket
    clock = Clock(tmp_path)
    for name, text in clock.environment.items():
        monkeypatch.setenv(name, text)
    return clock


async def test_rows_run_once_while_the_clock_is_set_forwards_and_backwards(
    clock: Clock, stub_fleet: StubFleet
) -> None:
    stub_fleet.engine.take_seconds(0.5)
    stub_fleet.set_seats(32)
    batch_id = await stub_fleet.submit(requests(_ROWS))

    steps = (_STEP_SECONDS, 0, -_STEP_SECONDS, _STEP_SECONDS, 0)
    for number, seconds in enumerate(steps, start=1):
        goal = number * _ROWS // 8
        await eventually(lambda goal=goal: stub_fleet.engine.rows_answered() >= goal)  # type: ignore[misc]  # bound now
        clock.set(seconds)
        # On a busy machine, several goals are reached at once.
        await eventually(lambda seconds=seconds: _runs_at(stub_fleet, seconds))  # type: ignore[misc]  # as above
    record = await stub_fleet.end_of(batch_id)

    assert record.status == "completed"
    output = await stub_fleet.results(record, "output")
    assert [line["custom_id"] for line in output] == [f"row-{row}" for row in range(_ROWS)]
    # The fault bites: the engine's journal has the times of its own clock.
    times = [run["at"] for run in stub_fleet.engine.runs()]
    assert max(times) - min(times) > 100
    # No claim ran out, and none was taken away.
    assert set(stub_fleet.engine.rows_seen().values()) == {1}


def _runs_at(stub_fleet: StubFleet, seconds: int) -> bool:
    """Whether a row was run while the engine's clock was off by so much."""
    its_now = time.time() + seconds
    return any(abs(run["at"] - its_now) < _STEP_SECONDS / 2 for run in stub_fleet.engine.runs())
