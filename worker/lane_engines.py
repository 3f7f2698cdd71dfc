"""What a lane job needs of Ray: its engines, and what runs slices on each of them."""

import asyncio
import os
from collections.abc import Sequence

from shared.cache_salt import CacheSalts
from shared.catalog import Catalog, Lane
from shared.doors import Door
from shared.engines import ReplicaNumbers
from shared.slices import Claim
from shared.state import State
from shared.tracing import spans
from worker.adapter_engine import with_adapters
from worker.batch_watch import BatchWatch
from worker.engine_client import EngineClient
from worker.engine_deployment import ensure_engine, restore_engine
from worker.engine_errors import Engine
from worker.engine_sizes import (
    mappers_of_wave,
    rows_ahead,
    rows_of_call,
    small_rows,
    turn_rows,
)
from worker.media_engine import with_media
from worker.settings import WorkerSettings
from worker.slice_runner import SliceRunner
from worker.suspect_runner import SuspectRunner
from worker.wave import run_wave


class LaneEngines:
    """The engines that may take the lane's rows, each named by its own lane.

    Tests without Ray override its methods.
    """

    def __init__(
        self,
        catalog: Catalog,
        lane: Lane,
        state: State,
        settings: WorkerSettings,
        *,
        patience_seconds: float | None,
    ) -> None:
        self._catalog = catalog
        self._settings = settings
        model = catalog.model(lane.model)
        self._share_prefixes = model.share_prefixes
        self._rules = model.row_rules
        self._rows_in_engine = rows_ahead(model)
        #: Nothing that was begun directly waits here: `LaneLoad` says how much that is.
        any_rows = max(settings.direct_rows, 2 * self._rows_in_engine)
        self._direct_rows = any_rows + small_rows(model) + turn_rows(model)
        self._rows_of_call = rows_of_call(model, settings.rows_per_engine_call)
        self._patience_seconds = patience_seconds
        self._watch = BatchWatch(state)
        self._slice_runners: dict[Lane, SliceRunner] = {}
        self._suspect_runners: dict[Lane, SuspectRunner] = {}
        self._deploying = asyncio.Lock()
        self._plain_clients: dict[Lane, EngineClient] = {}

    async def ensure(self, engine: Lane) -> None:
        """Deploy the engine unless it is deployed. Raises EngineFailedError."""
        # Whoever comes second finds that it is: a deployment takes seconds of a core.
        async with self._deploying:
            await asyncio.to_thread(ensure_engine, self._catalog, engine)

    async def restore(self, engine: Lane) -> bool:
        """Deploy an engine again that was deployed and has been removed; returns whether it was.

        Raises EngineFailedError and TransientError.
        """
        async with self._deploying:
            return await asyncio.to_thread(restore_engine, self._catalog, engine)

    async def doors(self, engine: Lane) -> list[Door]:
        """Where the engine's replicas take live calls. Raises TransientError."""
        return await self._plain_client(engine).doors()

    async def numbers(self, engine: Lane) -> list[ReplicaNumbers]:
        """What the engine's replicas have counted. Raises TransientError."""
        return await self._plain_client(engine).numbers()

    async def know_free(self, engine: Lane, replicas: int) -> None:
        """Tell the engine's replicas how many of them live calls leave to batches."""
        await self._plain_client(engine).know_free(replicas)

    async def expect_small(self, engine: Lane) -> None:
        """Tell the engine that rows of a small batch are on their way."""
        await self._plain_client(engine).expect_small()

    async def expect(self, engine: Lane, replicas: float) -> None:
        """Tell the engine how many replicas its batches need."""
        await self._plain_client(engine).expect(replicas)

    async def adapters(self, engine: Lane) -> set[tuple[str, str]]:
        """Tenant and name of each tenant's adapter that is loaded. Raises TransientError."""
        return await self._plain_client(engine).adapters()

    async def forget_adapters(self, engine: Lane, names: Sequence[str]) -> None:
        """Let the engine's replicas unload these adapters."""
        await self._plain_client(engine).forget_adapters(names)

    async def wake(self, engine: Lane) -> None:
        """Return once a replica answers. Raises EngineFailedError and TransientError."""
        await self.ensure(engine)
        await self._plain_client(engine).wake()

    async def run_wave(self, claims: list[Claim], engine: Lane) -> None:
        """Run the slices up to their commits, in one Ray Data execution."""
        await asyncio.to_thread(
            run_wave,
            claims,
            app_name=self._catalog.app_name(engine),
            pool=engine.pool,
            rows_in_engine=self._rows_in_engine,
            rows_of_call=self._rows_of_call,
            share_prefixes=self._share_prefixes,
            rules=self._rules,
            patience_seconds=self._patience_seconds,
            wave=spans.current(),
            mappers=mappers_of_wave(len(os.sched_getaffinity(0)), self._settings.mappers_per_wave),
        )

    def slice_runner(self, engine: Lane) -> SliceRunner:
        """The one that all slices share which run directly."""
        if engine not in self._slice_runners:
            self._slice_runners[engine] = SliceRunner(
                self.client(engine),
                self._watch,
                rows_in_engine=self._direct_rows,
                rows_per_engine_call=self._rows_of_call,
                pool=engine.pool,
            )
        return self._slice_runners[engine]

    def suspect_runner(self, engine: Lane) -> SuspectRunner:
        if engine not in self._suspect_runners:
            self._suspect_runners[engine] = SuspectRunner(
                self.client(engine),
                self._watch,
                rows_in_engine=self._rows_in_engine,
                rows_per_engine_call=self._rows_of_call,
                max_batch_deaths=self._settings.engine_deaths_per_batch,
                max_lane_deaths=self._settings.lane_engine_deaths,
                max_tenant_deaths=self._settings.max_engine_deaths_per_day,
                pool=engine.pool,
            )
        return self._suspect_runners[engine]

    def _plain_client(self, engine: Lane) -> EngineClient:
        if engine not in self._plain_clients:
            self._plain_clients[engine] = EngineClient(self._catalog.app_name(engine))
        return self._plain_clients[engine]

    def client(self, engine: Lane) -> Engine:
        """Calls the engine from this process."""
        client = EngineClient(
            self._catalog.app_name(engine),
            patience_seconds=self._patience_seconds,
            salts=CacheSalts(self._settings.cache_key, self._share_prefixes),
        )
        engine_with_adapters = with_adapters(client, self._settings)
        return with_media(engine_with_adapters, self._settings, self._rules)
