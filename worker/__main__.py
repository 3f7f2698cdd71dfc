"""`python -m worker lane LANE --job ID` inside Ray; `python -m worker check CATALOG` before it."""

import argparse
import asyncio
import logging
import os
import sys
from pathlib import Path


def main() -> int:
    """Exit code 2 for what the operator must mend."""
    parser = argparse.ArgumentParser(prog="python -m worker")
    commands = parser.add_subparsers(dest="command", required=True)
    lane = commands.add_parser("lane", help="run the lane job of LANE")
    lane.add_argument("lane")
    lane.add_argument("--job", required=True)
    lane.add_argument("--catalog", default="", help="what `catalog_digest` says of the right one")
    check = commands.add_parser("check", help="hold CATALOG's engine arguments against vLLM's")
    check.add_argument("catalog", type=Path)
    arguments = parser.parse_args()
    if arguments.command == "check":
        from worker.check import check_catalog

        return check_catalog(arguments.catalog)
    return _run_lane(arguments.lane, arguments.job, arguments.catalog)


def _run_lane(lane_name: str, job: str, digest: str) -> int:
    import ray

    from shared import log
    from shared.catalog import load_catalog
    from worker.catalog import wait_for_catalog
    from worker.connections import open_state, open_storage, read_settings
    from worker.job import LaneJob
    from worker.wave import prepare_ray_data

    settings = read_settings()
    log.configure("lane-job", settings.log_level)
    wait_for_catalog(settings.catalog, digest)
    catalog = load_catalog(settings.catalog)
    ray.init(address="auto", logging_level=logging.WARNING, log_to_driver=False)
    prepare_ray_data()

    async def work() -> None:
        state, storage = open_state(settings), open_storage(settings)
        try:
            await LaneJob(
                state,
                storage,
                settings,
                lane=catalog.lane_named(lane_name),
                job=job,
                catalog=catalog,
            ).run()
        finally:
            storage.close()
            await state.close()

    asyncio.run(work())
    # Waves of a job that was superseded run in threads that nothing can stop.
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
