"""When a lane job looks whether its engine has been removed, with a real Redis."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from shared.catalog import Lane
from shared.errors import TransientError
from shared.state import State
from tests.batches import JOB, LANE
from tests.eventually import eventually
from worker.engine_errors import EngineFailedError

pytestmark = pytest.mark.filterwarnings("ignore")  # Ray warns about itself


class Asked:
    """How often the engine was to be there, and what then happens."""

    def __init__(self) -> None:
        self.count = 0
        self.error: Exception | None = None
        self.is_needed = True


@asynccontextmanager
async def keeping(state: State, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Asked]:
    from worker.engine_keeper import EngineKeeper
    from worker.lane_engines import LaneEngines

    asked = Asked()

    class Engines(LaneEngines):
        """In the place of engines: one that is there."""

        def __init__(self) -> None:
            pass

        async def restore(self, engine: Lane) -> bool:
            assert engine.name == LANE
            asked.count += 1
            if asked.error is not None:
                raise asked.error
            return False

    monkeypatch.setattr("worker.engine_keeper._LOOK_SECONDS", 0.05)
    await state.lanes.open_job(LANE, "", JOB)
    keeper = EngineKeeper(
        state, Engines(), lane=Lane("m", "gpu"), job=JOB, is_needed=lambda: asked.is_needed
    )
    running = asyncio.create_task(keeper.run())
    try:
        yield asked
    finally:
        running.cancel()
        await asyncio.wait([running])


async def test_it_looks_again_and_again_whatever_ray_answers(
    own_state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with keeping(own_state, monkeypatch) as asked:
        asked.error = TransientError("Ray does not answer")

        await eventually(lambda: asked.count > 2)


async def test_it_does_not_look_while_nothing_needs_the_engine_or_another_job_has_it(
    own_state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with keeping(own_state, monkeypatch) as asked:
        asked.is_needed = False
        await asyncio.sleep(0.3)
        assert asked.count == 0

        await own_state.lanes.open_job(LANE, JOB, "another")
        asked.is_needed = True
        await asyncio.sleep(0.3)
        assert asked.count == 0


async def test_what_serve_refuses_fails_the_lane(
    own_state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with keeping(own_state, monkeypatch) as asked:
        asked.error = EngineFailedError("no such argument")

        async def has_failed() -> bool:
            return "no such argument" in (await own_state.lanes.failure(LANE) or "")

        await eventually(has_failed)
