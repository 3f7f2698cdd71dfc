"""What a lane job tells its engines of the people who call them, with a real Redis."""

import asyncio

import pytest

from shared.catalog import Lane
from shared.doors import Door
from shared.state import State
from tests.batches import JOB, LANE
from tests.eventually import eventually

pytestmark = pytest.mark.filterwarnings("ignore")  # Ray warns about itself


async def test_an_engine_whose_people_leave_rows_nothing_hears_how_many_others_have_room(
    own_state: State,
) -> None:
    from worker.door_keeper import DoorKeeper
    from worker.lane_engines import LaneEngines

    class Engines(LaneEngines):
        """In the place of engines: three replicas on one pool, and one on the other."""

        def __init__(self) -> None:
            self.for_people: set[str] = set()
            self.free: dict[str, int] = {}

        async def doors(self, engine: Lane) -> list[Door]:
            replicas = ["a", "b", "c"] if engine.name == LANE else ["d"]
            return [
                Door(one, "127.0.0.1", 1, "token", is_for_people=one in self.for_people)
                for one in replicas
            ]

        async def know_free(self, engine: Lane, replicas: int) -> None:
            self.free[engine.name] = replicas

    await own_state.lanes.open_job(LANE, "", JOB)
    engines, lanes = Engines(), (Lane("m", "gpu"), Lane("m", "other"))
    keeper = DoorKeeper(own_state, engines, lanes=lanes, job=JOB, always=True)
    running = asyncio.create_task(keeper.run())
    await asyncio.sleep(1.2)
    assert engines.free == {}

    engines.for_people.add("b")
    await eventually(lambda: engines.free == {LANE: 2})
    engines.for_people.update("acd")
    await eventually(lambda: engines.free == {LANE: 0, lanes[1].name: 0})
    running.cancel()
    await asyncio.wait([running])
