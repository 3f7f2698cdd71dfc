"""A lane job with real waves and real calls: `python -m benchmarks.paced_lane LANE JOB PORT`.

The scripted engine is a replica of Ray Serve, in a cluster of its own.
"""

import asyncio
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import ClassVar

from benchmarks.scripted_engine import Pace, ScriptedEngine
from benchmarks.stub_engine import deploy_replicas
from benchmarks.stub_lane import run_in_own_cluster
from shared.catalog import Lane
from shared.engines import ReplicaNumbers
from shared.ordering.work import Work
from worker.engine_errors import Results
from worker.lane_engines import LaneEngines

_HOST = "127.0.0.1"


class PacedReplica:
    """As `worker.engine.BatchServer`, as far as lanes call it."""

    def __init__(self, port: int) -> None:
        """It answers questions about its rows at `port`."""
        self._engine = ScriptedEngine(Pace())
        # Serve makes it in its own loop.
        self._running = asyncio.ensure_future(self._run(port))

    async def run_lines(
        self, lines: Sequence[bytes], order: Sequence[Work]
    ) -> AsyncGenerator[Results, None]:
        """The answers, as their rows end."""
        async with aclosing(self._engine.answers(lines, order)) as groups:
            async for group in groups:
                yield group

    async def withdraw(self, batch_id: str) -> None:
        self._engine.withdraw(batch_id)

    async def _run(self, port: int) -> None:
        server = await asyncio.start_server(self._engine.take, _HOST, port)
        await asyncio.gather(server.serve_forever(), self._engine.go_on())

    async def complete(self, batch_id: str) -> None:
        """It learns nothing from that."""


class PacedEngines(LaneEngines):
    """The paced replica in place of vLLM."""

    port: ClassVar[int]

    async def numbers(self, engine: Lane) -> list[ReplicaNumbers]:  # noqa: ARG002  # as in LaneEngines
        """It counts nothing."""
        return []

    async def ensure(self, engine: Lane) -> None:
        name = self._catalog.app_name(engine)
        async with self._deploying:
            await asyncio.to_thread(deploy_replicas, name, PacedReplica, 1, self.port)


if __name__ == "__main__":
    PacedEngines.port = int(sys.argv[3])
    run_in_own_cluster(sys.argv[1], sys.argv[2], PacedEngines)
