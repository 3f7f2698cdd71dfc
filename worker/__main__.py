"""`python -m worker lane LANE --job ID` inside Ray; `check CATALOG` and `tune MODEL` before it."""

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn


def main() -> int:
    """Run a command. The exit code is 2 for what the operator has to fix."""
    arguments, unknown = read_arguments(sys.argv[1:])
    if arguments.command == "check":
        from worker.check import check_catalog

        return check_catalog(arguments.catalog)
    if arguments.command == "tune":
        return _tune(arguments)
    return _run_lane(arguments.lane, arguments.job, arguments.catalog, unknown)


def read_arguments(words: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """The arguments, and those from a newer dispatcher that this lane job does not know.

    Any other unknown argument ends the process with code 2.
    """
    parser = argparse.ArgumentParser(prog="python -m worker")
    commands = parser.add_subparsers(dest="command", required=True)
    lane = commands.add_parser("lane", help="run the lane job of LANE")
    lane.add_argument("lane")
    lane.add_argument("--job", required=True)
    lane.add_argument(
        "--catalog", default="", help="the `catalog_digest` of the dispatcher's catalog"
    )
    check = commands.add_parser("check", help="check CATALOG's engine arguments against vLLM's")
    check.add_argument("catalog", type=Path)
    tune = commands.add_parser("tune", help="try settings of MODEL's engine on this machine")
    tune.add_argument("model")
    tune.add_argument("--catalog", type=Path, required=True)
    tune.add_argument("--rows", type=Path, required=True)
    tune.add_argument("--minutes", type=float, required=True)
    tune.add_argument("--pool")
    arguments, unknown = parser.parse_known_args(words)
    if unknown and arguments.command != "lane":
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    return arguments, unknown


def _tune(arguments: argparse.Namespace) -> int:
    from shared.errors import SetupError
    from worker.tune import tell, tune

    try:
        return tune(
            arguments.catalog,
            arguments.model,
            arguments.rows,
            minutes=arguments.minutes,
            pool=arguments.pool,
        )
    except SetupError as error:
        tell("failed", reason=str(error))
        return 2


def _run_lane(lane_name: str, job: str, digest: str, unknown: list[str]) -> NoReturn:
    import ray
    import structlog

    from shared.monitoring import log
    from shared.tracing import spans
    from worker.catalog import wait_for_catalog
    from worker.connections import read_settings
    from worker.job import run_lane_job
    from worker.leftovers import logs_of_ray, sweep_regularly
    from worker.wave import prepare_ray_data

    settings = read_settings()
    log.configure("lane-job", settings.log_level)
    spans.start("lane-job")
    if unknown:
        structlog.get_logger().warning("lane_job.newer_dispatcher", ignored=unknown)
    wait_for_catalog(settings.catalog, digest)
    ray.init(address="auto", logging_level=logging.WARNING, log_to_driver=False)
    prepare_ray_data()
    sweep_regularly(logs_of_ray())
    run_lane_job(settings, lane_name, job)


if __name__ == "__main__":
    sys.exit(main())
