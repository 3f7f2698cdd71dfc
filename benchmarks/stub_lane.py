"""A lane job on an engine that answers at once: `… benchmarks.stub_lane LANE JOB REPLICAS SHARES`.

The real `LaneJob` in a Ray cluster of its own, with real waves and real calls over Ray Serve.
The rows that each replica has answered stand in the file SHARES, as a JSON list.
"""

import asyncio
import json
import logging
import os
import sys
from pathlib import Path
from typing import ClassVar

from benchmarks.stub_engine import deploy_stub
from shared.catalog import Lane
from shared.engines import ReplicaNumbers
from worker.lane_engines import LaneEngines

#: How many answers a replica sends together; all of a call if it is not set.
ROWS_PER_MESSAGE_VARIABLE = "STUB_ROWS_PER_MESSAGE"
_LOGICAL_CPUS = 16


class StubEngines(LaneEngines):
    """The stub in place of vLLM."""

    replicas: ClassVar[int]
    shares: ClassVar[Path]

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
                rows_per_message=int(os.environ.get(ROWS_PER_MESSAGE_VARIABLE, "0")),
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
    lane, job, replicas, shares = sys.argv[1:]
    StubEngines.replicas, StubEngines.shares = int(replicas), Path(shares)
    run_in_own_cluster(lane, job, StubEngines)


if __name__ == "__main__":
    main()
