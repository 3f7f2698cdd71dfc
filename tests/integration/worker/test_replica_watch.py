"""When a lane job asks its replicas what they have counted, with a real Redis."""

import asyncio

import pytest

from shared.catalog import Lane
from shared.engines import ReplicaNumbers
from shared.state import State
from tests.eventually import eventually

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
        own_state, engines, lanes=(lane,), is_busy=lambda: False, slices_held=lambda: held[0]
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
