"""When a lane job asks its replicas what they have counted, with a real Redis."""

import asyncio

import pytest
from msgspec import structs

from shared.catalog import Lane
from shared.engines import ReplicaNumbers
from shared.state import State
from tests.eventually import eventually
from tests.fleet_counts import REPLICA

pytestmark = pytest.mark.filterwarnings("ignore")  # Ray warns about itself


async def test_replicas_are_asked_after_work_that_was_over_between_two_looks(
    own_state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    from worker import replica_watch
    from worker.lane_engines import LaneEngines

    class Asked(LaneEngines):
        """In the place of engines: says when it is asked."""

        def __init__(self) -> None:
            self.asked: list[Lane] = []

        async def numbers(self, engine: Lane) -> list[ReplicaNumbers]:
            self.asked.append(engine)
            return []

    monkeypatch.setattr(replica_watch, "LOOK_SECONDS", 0.01)
    engines, held, lane = Asked(), [0], Lane("m", "gpu")
    watch = replica_watch.ReplicaWatch(
        own_state,
        engines,
        lanes=(lane,),
        is_busy=lambda: False,
        slices_held=lambda: held[0],
        on_rows=lambda _: None,
    )
    running = asyncio.create_task(watch.run())
    await asyncio.sleep(0.1)
    assert not engines.asked

    held[0] = 3
    await eventually(lambda: bool(engines.asked))
    await asyncio.sleep(0.1)

    running.cancel()
    await asyncio.wait([running])
    # Once: further calls would keep the engine from its sleep.
    assert engines.asked == [lane]


@pytest.mark.parametrize(
    ("told", "known"), [([[3, 4], [5]], 12), ([[3, None], [5]], None), ([[], []], None)], ids=str
)
async def test_the_rows_of_all_engines_are_known_if_each_replica_tells_them(
    own_state: State, told: list[list[int | None]], known: int | None
) -> None:
    from worker import replica_watch
    from worker.lane_engines import LaneEngines

    lanes = Lane("m", "one"), Lane("m", "other")

    class Telling(LaneEngines):
        """In the place of engines: each lane has replicas with so many rows."""

        def __init__(self) -> None: ...

        async def numbers(self, engine: Lane) -> list[ReplicaNumbers]:
            return [
                structs.replace(REPLICA, replica=f"{engine.pool}-{number}", rows=rows)
                for number, rows in enumerate(told[lanes.index(engine)])
            ]

    found: list[int] = []
    watch = replica_watch.ReplicaWatch(
        own_state,
        Telling(),
        lanes=lanes,
        is_busy=lambda: True,
        slices_held=lambda: 0,
        on_rows=found.append,
    )
    running = asyncio.create_task(watch.run())
    await asyncio.sleep(0.3)
    running.cancel()
    await asyncio.wait([running])

    assert found == ([] if known is None else [known])
