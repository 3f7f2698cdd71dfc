"""The metrics by Prometheus's own rules for names, types, units and texts."""

import subprocess

import pytest

from shared.monitoring.fleet_metrics import fleet_exposition
from shared.monitoring.metrics import Calls
from tests.fleet_counts import COUNTS
from tests.prometheus import debians


@pytest.fixture(scope="module")
def promtool() -> str:
    return debians("promtool")


def test_the_metrics_of_both_processes_keep_the_conventions(promtool: str) -> None:
    calls = Calls()
    calls.count("GET", "/v1/batches", 200, 0.1)
    fleet = fleet_exposition(COUNTS, up={"redis": True}, dead_letters=1, leads=True)
    wrong = b"# HELP waited_milliseconds Time.\n# TYPE waited_milliseconds counter\n"

    assert _complaints(promtool, calls.exposition()) == ""
    assert _complaints(promtool, fleet) == ""
    # The tool finds what breaks them.
    assert "_total" in _complaints(promtool, wrong + b"waited_milliseconds 1\n")


def _complaints(promtool: str, page: bytes) -> str:
    done = subprocess.run(
        [promtool, "check", "metrics"], input=page, capture_output=True, check=False
    )
    return (done.stdout + done.stderr).decode()
