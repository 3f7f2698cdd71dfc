"""A lane job on the scripted engine: `python -m benchmarks.scripted_lane LANE JOB PORT`.

The real `LaneJob` without Ray: a wave runs in a thread, and starts as slowly as an execution of Ray
Data does.
"""

import asyncio
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import ClassVar

from benchmarks.scripted_engine import called
from shared.catalog import Lane
from shared.engines import ReplicaNumbers
from shared.monitoring import log
from shared.ordering.work import Work
from shared.slices import Claim
from shared.tracing import spans
from worker.batch_watch import BatchWatch
from worker.block_runner import BlockRunner
from worker.connections import opened, read_settings
from worker.engine_errors import Engine, EngineGoneError, Results
from worker.job import run_lane_job
from worker.lane_engines import LaneEngines
from worker.slice_runner import SliceRunner
from worker.wave_blocks import blocks_at_once, grouped

_HOST = "127.0.0.1"
#: From the claims of a wave to its first row.
_WAVE_STARTS_IN_SECONDS = 4.0


class ScriptedClient:
    """As `worker.engine_client.EngineClient`, over TCP."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def run_lines(
        self, lines: Sequence[bytes], order: Sequence[Work]
    ) -> AsyncGenerator[Results, None]:
        call = {"lines": list(lines), "order": list(order)}
        try:
            async with aclosing(called(_HOST, self._port, call)) as groups:
                async for group in groups:
                    yield [(position, (status, body)) for position, (status, body) in group]
        except (OSError, asyncio.IncompleteReadError) as error:
            raise EngineGoneError("the engine was lost with these lines in it") from error

    async def withdraw(self, batch_id: str) -> None:
        async with aclosing(called(_HOST, self._port, {"withdraw": batch_id})) as answers:
            async for _ in answers:
                pass


class ScriptedEngines(LaneEngines):
    """The scripted engine in place of Ray's engines."""

    port: ClassVar[int]

    async def ensure(self, engine: Lane) -> None:
        """It runs."""

    async def restore(self, engine: Lane) -> bool:  # noqa: ARG002  # as below
        return False

    async def numbers(self, engine: Lane) -> list[ReplicaNumbers]:  # noqa: ARG002  # as below
        """It counts nothing."""
        return []

    def client(self, engine: Lane) -> Engine:  # noqa: ARG002  # there is one for all
        return ScriptedClient(self.port)

    async def run_wave(self, claims: list[Claim], engine: Lane) -> None:  # noqa: ARG002  # as above
        """Take the steps of `worker.wave` in a thread of this process instead of Ray's."""
        await asyncio.to_thread(lambda: asyncio.run(self._run_wave(claims)))

    async def _run_wave(self, claims: list[Claim]) -> None:
        await asyncio.sleep(_WAVE_STARTS_IN_SECONDS)
        async with opened(self._settings) as (state, storage):
            runner = SliceRunner(
                ScriptedClient(self.port),
                BatchWatch(state),
                rows_in_engine=self._rows_in_engine,
                rows_per_engine_call=self._rows_of_call,
                wave=spans.current(),
            )
            blocks = grouped(claims)
            of_mapper = blocks_at_once(blocks, self._rows_in_engine)
            own = BlockRunner(state, storage, runner, blocks_at_once=of_mapper)
            await asyncio.gather(*map(own.run, blocks))


if __name__ == "__main__":
    settings = read_settings()
    log.configure("lane-job", settings.log_level)
    spans.start("lane-job")
    ScriptedEngines.port = int(sys.argv[3])
    run_lane_job(settings, sys.argv[1], sys.argv[2], engines_class=ScriptedEngines)
