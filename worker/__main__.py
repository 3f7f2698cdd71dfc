"""`python -m worker lane LANE --job ID` inside Ray; `python -m worker check CATALOG` before it."""

import argparse
import logging
import sys
from pathlib import Path
from typing import NoReturn


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


def _run_lane(lane_name: str, job: str, digest: str) -> NoReturn:
    import ray

    from shared import log
    from worker.catalog import wait_for_catalog
    from worker.connections import read_settings
    from worker.job import run_lane_job
    from worker.wave import prepare_ray_data

    settings = read_settings()
    log.configure("lane-job", settings.log_level)
    wait_for_catalog(settings.catalog, digest)
    ray.init(address="auto", logging_level=logging.WARNING, log_to_driver=False)
    prepare_ray_data()
    run_lane_job(settings, lane_name, job)


if __name__ == "__main__":
    sys.exit(main())
