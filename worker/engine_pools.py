"""The engines of a lane's model on each of its pools: their status in Ray, and their requests."""

import asyncio
import time
from collections.abc import Sequence

import structlog
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.util import placement_group_table

from shared.catalog import Catalog, Lane
from shared.errors import SetupError, TransientError
from worker.engine_client import EngineClient
from worker.engine_deployment import ensure_engine
from worker.engine_errors import EngineFailedError
from worker.engine_status import engine_failure, engine_state
from worker.spill import Choice, PoolStatus, Spill

log = structlog.get_logger()

_CHECK_SECONDS = 1.0


class EnginePools:
    """Chooses the engine that takes the lane's rows. Belongs to one event loop."""

    def __init__(self, catalog: Catalog, lane: Lane) -> None:
        self._catalog = catalog
        others = [other for other in catalog.lanes_of(lane.model) if other != lane]
        #: In order of preference. The work is in the first one.
        self.lanes = (lane, *others)
        spill_seconds = catalog.model(lane.model).spill_seconds
        self._spill = Spill(spill_seconds)
        #: How long rows wait for a replica of the engine that they were given to. Its machine may
        #: have died, and another pool's engine takes what goes back.
        self.patience_seconds = spill_seconds if others else None
        #: The only engine takes rows whenever there are any.
        self._first_choice = Choice(None if others else 0, 1, None)
        self._choice = self._first_choice
        self._statuses: list[PoolStatus] = []
        self._refusals: dict[Lane, str] = {}
        self._checked_at = 0.0
        self._requests: dict[Lane, asyncio.Task[None]] = {}

    @property
    def are_several(self) -> bool:
        """Whether there is anything to choose."""
        return len(self.lanes) > 1

    def reset(self) -> None:
        """Withdraw all requests, because the lane has no work."""
        self._spill.reset()
        self._choice, self._statuses = self._first_choice, []
        for request in self._requests.values():
            request.cancel()
        self._requests.clear()

    async def choose(self) -> Lane | None:
        """The engine that takes rows now; None while none can. Requests those that are wanted.

        Raises EngineFailedError when none ever will, TransientError when Ray does not answer.
        """
        now = time.monotonic()
        if self.are_several and now - self._checked_at >= _CHECK_SECONDS:
            self._statuses = await asyncio.to_thread(self._ask_ray)
            before, self._choice = self._choice, self._spill.decide(self._statuses, now)
            if self._choice.failure is not None:
                raise EngineFailedError(self._choice.failure)
            self._checked_at = now
            if before[:2] != self._choice[:2]:
                self._log_choice()
            for place, lane in enumerate(self.lanes[: self._choice.requested]):
                if not self._statuses[place].runs:
                    self._request_engine(lane)
        return None if self._choice.runs_on is None else self.lanes[self._choice.runs_on]

    def report(self) -> dict[str, str | float]:
        """Where rows run and what they wait for, as fields of the lane's job record."""
        if not self.are_several:
            return {}
        choice = self._choice
        requested = zip(self.lanes[: choice.requested], self._statuses, strict=False)
        full = [lane.pool for lane, status in requested if not status.has_room]
        next_at = choice.next_request_at
        in_seconds = None if next_at is None else next_at - time.monotonic()
        return {
            "runs_on": "" if choice.runs_on is None else self.lanes[choice.runs_on].pool,
            "full": " ".join(full),
            "spills_at": 0 if in_seconds is None else time.time() + max(0.0, in_seconds),
        }

    def _ask_ray(self) -> list[PoolStatus]:
        try:
            groups = placement_group_table().values()
            placed = [group["name"] for group in groups if group["state"] == "CREATED"]
            return [self._status(lane, placed) for lane in self.lanes]
        except (RayError, RayServeException) as error:
            raise TransientError(f"Ray does not answer about its engines: {error!r}") from error

    def _status(self, lane: Lane, placed: Sequence[str]) -> PoolStatus:
        app_name = self._catalog.app_name(lane)
        state = engine_state(app_name)
        return PoolStatus(
            runs=state is not None and state.running > 0,
            # Serve gives a replica's placement group the name of the replica.
            is_placed=any(name.startswith(f"SERVE_REPLICA::{app_name}#") for name in placed),
            failure=self._refusals.get(lane) or engine_failure(app_name),
        )

    def _request_engine(self, lane: Lane) -> None:
        """Let Serve start a replica: it does so for a call that waits for one."""
        request = self._requests.get(lane)
        if request is None or request.done():
            self._requests[lane] = asyncio.create_task(self._wake(lane))

    async def _wake(self, lane: Lane) -> None:
        try:
            await asyncio.to_thread(ensure_engine, self._catalog, lane)
            await EngineClient(self._catalog.app_name(lane)).wake()
        except SetupError as error:
            self._refusals[lane] = str(error)
        except TransientError as error:
            log.info("engine.not_woken", lane=lane.name, reason=str(error))

    def _log_choice(self) -> None:
        runs_on = self._choice.runs_on
        log.info(
            "lane_job.pool",
            lane=self.lanes[0].name,
            runs_on=None if runs_on is None else self.lanes[runs_on].pool,
            asked=[lane.pool for lane in self.lanes[: self._choice.requested]],
        )
