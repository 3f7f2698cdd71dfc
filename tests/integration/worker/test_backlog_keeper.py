"""What a lane job tells its engines of the batches that wait, with a real Redis."""

import asyncio

import pytest

from shared.catalog import Lane
from shared.state import State
from tests.batches import LANE, in_progress
from tests.eventually import eventually

pytestmark = pytest.mark.filterwarnings("ignore")  # Ray warns about itself


async def test_engines_are_told_only_while_there_are_rows(own_state: State) -> None:
    from worker.backlog_keeper import BacklogKeeper
    from worker.lane_engines import LaneEngines

    class Told(LaneEngines):
        """In the place of engines: keeps what they are told."""

        def __init__(self) -> None:
            self.needs: list[tuple[Lane, float]] = []

        async def expect(self, engine: Lane, replicas: float) -> None:
            self.needs.append((engine, replicas))

    await in_progress(own_state)
    engines, rows = Told(), [0]
    lanes = (Lane("m", "gpu"), Lane("m", "other"))
    assert lanes[0].name == LANE
    keeper = BacklogKeeper(
        own_state, engines, lanes=lanes, seats=8, backlog_seconds=300, rows=lambda: rows[0]
    )

    for told in (0, len(lanes)):
        rows[0] = told
        running = asyncio.create_task(keeper.run())
        await asyncio.sleep(0.2)
        await eventually(lambda: len(engines.needs) == told)  # noqa: B023  # it is called before the next turn
        running.cancel()
        await asyncio.wait([running])

    # Its rate is not known yet.
    assert engines.needs == [(lane, 1.0) for lane in lanes]
