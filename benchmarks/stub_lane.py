"""A lane job on an engine that answers at once.

python -m benchmarks.stub_lane LANE JOB REPLICAS SHARES ROWS

The real `LaneJob` in a Ray cluster of its own, with real waves and real calls over Ray Serve.
The rows that each replica has answered stand in the file SHARES, as a JSON list. It answers ROWS of
a call in each message, or all of them with 0.
"""

import asyncio
import json
import logging
import sys
from pathlib import Path
from typing import ClassVar

from benchmarks.stub_engine import deploy_stub
from shared.catalog import Lane
from shared.engines import ReplicaNumbers
from worker.lane_engines import LaneEngines

_LOGICAL_CPUS = 16


class StubEngines(LaneEngines):
    """The stub in place of vLLM."""

    replicas: ClassVar[int]
    shares: ClassVar[Path]
    rows_per_message: ClassVar[int]

    async def restore(self, engine: Lane) -> bool:  # noqa: ARG002  # it is there
        return False

    async def numbers(self, engine: Lane) -> list[ReplicaNumbers]:
        """None; what each replica has answered is written down instead."""
        shares = await self._plain_client(engine)._ask_all("rows")
        self.shares.write_text(json.dumps(shares))
        return []

    async def ensure(self, engine: Lane) -> None:
        name = self._catalog.app_name(engine)
        async with self._deploying:
            await asyncio.to_thread(
                deploy_stub,
                name,
                self.replicas,
                rows_per_message=self.rows_per_message,
            )


def run_in_own_cluster(lane: str, job: str, engines_class: type[LaneEngines]) -> None:
    """Be the lane's job, in a Ray cluster of its own."""
    import ray

    from shared.monitoring import log
    from worker.connections import read_settings
    from worker.job import run_lane_job
    from worker.wave import STORES, prepare_ray_data

    settings = read_settings()
    log.configure("lane-job", settings.log_level)
    ray.init(
        "local",
        num_cpus=_LOGICAL_CPUS,
        resources={STORES: 1},
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.WARNING,
    )
    prepare_ray_data()
    run_lane_job(settings, lane, job, engines_class=engines_class)


def main() -> None:
    lane, job, replicas, shares, rows_per_message = sys.argv[1:]
    StubEngines.replicas, StubEngines.shares = int(replicas), Path(shares)
    StubEngines.rows_per_message = int(rows_per_message)
    run_in_own_cluster(lane, job, StubEngines)


if __name__ == "__main__":
    main()
