"""The engines of a lane's model on each of its pools: asks Ray how they stand, and wakes them."""

import asyncio
import time
from collections.abc import Sequence

import structlog
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.util import placement_group_table

from shared.catalog import Catalog, Lane
from shared.errors import SetupError, TransientError
from worker.engine_client import EngineClient, engine_failure, engine_state, ensure_engine
from worker.engine_errors import EngineFailedError
from worker.spill import Choice, Sight, Spill

log = structlog.get_logger()

_LOOK_SECONDS = 1.0


class Pools:
    """Which engine takes the lane's rows. Belongs to one event loop."""

    def __init__(self, catalog: Catalog, lane: Lane) -> None:
        self._catalog = catalog
        others = [other for other in catalog.lanes_of(lane.model) if other != lane]
        #: In order of preference; the work is in the first one.
        self.lanes = (lane, *others)
        spill_seconds = catalog.model(lane.model).spill_seconds
        self._spill = Spill(spill_seconds)
        #: How long rows wait for a replica of the engine that they were given to; the machine may
        #: have died, and another pool's engine takes what goes back.
        self.patience_seconds = spill_seconds if others else None
        self._choice = Choice(0, 1, None) if not others else Choice(None, 1, None)
        self._sights: list[Sight] = []
        self._refusals: dict[Lane, str] = {}
        self._looked_at = 0.0
        self._knocks: dict[Lane, asyncio.Task[None]] = {}

    @property
    def are_several(self) -> bool:
        """Whether there is anything to choose."""
        return len(self.lanes) > 1

    def rest(self) -> None:
        """The lane has no work."""
        self._spill.rest()
        self._choice, self._sights = Choice(None, 1, None), []
        for knock in self._knocks.values():
            knock.cancel()
        self._knocks.clear()

    async def choose(self) -> Lane | None:
        """Whose engine takes rows now; None while none can. Wakes those that are asked.

        Raises EngineFailedError when none ever will, TransientError when Ray does not say.
        """
        now = time.monotonic()
        if self.are_several and now - self._looked_at >= _LOOK_SECONDS:
            self._sights = await asyncio.to_thread(self._look)
            before, self._choice = self._choice, self._spill.look(self._sights, now)
            if self._choice.failure is not None:
                raise EngineFailedError(self._choice.failure)
            self._looked_at = now
            if (before.use, before.asked) != (self._choice.use, self._choice.asked):
                self._tell()
            for place, lane in enumerate(self.lanes[: self._choice.asked]):
                if not self._sights[place].runs:
                    self._knock(lane)
        return None if self._choice.use is None else self.lanes[self._choice.use]

    def told(self) -> dict[str, str | float]:
        """For those who ask why a batch waits, and where it runs."""
        if not self.are_several:
            return {}
        choice, sights = self._choice, self._sights
        full = [
            lane.pool
            for lane, sight in zip(self.lanes[: choice.asked], sights, strict=False)
            if not sight.runs and not sight.is_placed
        ]
        in_seconds = None if choice.next_at is None else choice.next_at - time.monotonic()
        return {
            "runs_on": "" if choice.use is None else self.lanes[choice.use].pool,
            "full": " ".join(full),
            "spills_at": 0 if in_seconds is None else time.time() + max(0.0, in_seconds),
        }

    def _look(self) -> list[Sight]:
        try:
            groups = placement_group_table().values()
            names = [group["name"] for group in groups if group["state"] == "CREATED"]
            return [self._sight(lane, names) for lane in self.lanes]
        except (RayError, RayServeException) as error:
            raise TransientError(f"Ray does not say how engines stand: {error!r}") from error

    def _sight(self, lane: Lane, placed: Sequence[str]) -> Sight:
        app = self._catalog.app_name(lane)
        state = engine_state(app)
        return Sight(
            runs=state is not None and state.running > 0,
            # Serve names a replica's placement group like the replica.
            is_placed=any(name.startswith(f"SERVE_REPLICA::{app}#") for name in placed),
            failure=self._refusals.get(lane) or engine_failure(app),
        )

    def _knock(self, lane: Lane) -> None:
        """Let Serve start a replica; a call that waits for one is how it learns of the need."""
        knock = self._knocks.get(lane)
        if knock is None or knock.done():
            self._knocks[lane] = asyncio.create_task(self._wake(lane))

    async def _wake(self, lane: Lane) -> None:
        try:
            await asyncio.to_thread(ensure_engine, self._catalog, lane)
            await EngineClient(self._catalog.app_name(lane)).wake()
        except SetupError as error:
            self._refusals[lane] = str(error)
        except TransientError as error:
            log.info("engine.not_woken", lane=lane.name, reason=str(error))

    def _tell(self) -> None:
        use, asked = self._choice.use, self.lanes[: self._choice.asked]
        log.info(
            "lane_job.pool",
            lane=self.lanes[0].name,
            runs_on=None if use is None else self.lanes[use].pool,
            asked=[lane.pool for lane in asked],
        )
