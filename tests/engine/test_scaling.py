"""How many replicas Serve keeps by our policy, with our options: what stands for engines is light.

Their replicas report what the test tells them, as those of engines report what they have.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from shared.catalog import Model, Pool
from tests.engine.conftest import a_ray
from tests.eventually import eventually
from worker.live_scaling import LIVE_METRIC, NEEDED_METRIC

pytest.importorskip("ray", reason="needs the worker's dependencies")

pytestmark = [
    pytest.mark.timeout(1800),
    # Ray warns about itself.
    pytest.mark.filterwarnings("ignore"),
]

APP, IDLE_SECONDS = "app", 5
#: How long batches have to need a replica.
SLOW_SECONDS = 10.0
MODEL = Model(
    name="m",
    pools=("cpu",),
    live={},
    max_replicas=3,
    idle_seconds=IDLE_SECONDS,
    engine={"max_num_seqs": 16},
)


class Lane:
    """What a lane job and gateways are to an engine."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    async def tell(self, *, live: float, needed: float) -> None:
        """Let each replica report this; `live` is a part of its seats."""
        from ray.serve.exceptions import RayServeException

        told = {LIVE_METRIC: live, NEEDED_METRIC: needed}

        async def has_told() -> bool:
            try:
                await self._handle.broadcast("tell", told).results_async()
            except RayServeException:
                # The handle knows a new replica a moment after Serve does.
                return False
            return True

        await eventually(has_told)

    @asynccontextmanager
    async def calls(self, count: int) -> AsyncIterator[None]:
        """So many calls of rows at once, until the context ends."""
        answers = [self._handle.work.remote() for _ in range(count)]
        try:
            yield
        finally:
            for answer in answers:
                answer.cancel()
            await asyncio.gather(*answers, return_exceptions=True)


@pytest.fixture(scope="module")
def lane() -> Iterator[Lane]:
    with a_ray(8):
        from ray import serve

        from worker.engine_definition import serve_options
        from worker.engine_deployment import start_serve
        from worker.engine_status import DEPLOYMENT

        class Engine:
            """In the place of an engine."""

            def __init__(self) -> None:
                self.told: dict[str, float] = {}

            async def tell(self, told: dict[str, float]) -> None:
                self.told = told

            async def record_autoscaling_stats(self) -> dict[str, float]:
                return self.told

            async def work(self) -> None:
                await asyncio.sleep(3600)

        start_serve()
        options = serve_options(MODEL, Pool(resources={"CPU": 1}))
        del options["ray_actor_options"]["runtime_env"]
        deployment: Any = serve.deployment(name=DEPLOYMENT, **options)(Engine)
        handle = serve.run(deployment.bind(), name=APP, route_prefix=None, blocking=False)
        yield Lane(handle)


async def test_live_calls_get_a_replica_and_batches_keep_it_as_long_as_they_fill_it(
    lane: Lane,
) -> None:
    async with lane.calls(1):
        await eventually(lambda: _running() == 1, timeout=300)
        await lane.tell(live=0.0, needed=0.1)
    async with lane.calls(6):
        # Batches need no second one, and live calls do.
        await lane.tell(live=0.8, needed=0.1)
        await eventually(lambda: _running() == 2, timeout=300)

        await lane.tell(live=0.0, needed=0.1)
        await asyncio.sleep(3 * IDLE_SECONDS)
        kept = _running()
    await eventually(lambda: _running() < 2, timeout=300)

    assert kept == 2


async def test_batches_get_replicas_when_they_have_needed_them_for_a_while(lane: Lane) -> None:
    async with lane.calls(1):
        await eventually(lambda: _running() == 1, timeout=300)
        await lane.tell(live=0.0, needed=0.5)
    async with lane.calls(6):
        await asyncio.sleep(2 * SLOW_SECONDS)
        content = _running()
        began = time.monotonic()
        await lane.tell(live=0.0, needed=2.5)
        await eventually(lambda: _running() == 3, timeout=300)
        waited = time.monotonic() - began

    assert content == 1
    assert waited >= SLOW_SECONDS


def _running() -> int:
    from worker.engine_status import engine_state

    state = engine_state(APP)
    return state.running if state else 0
