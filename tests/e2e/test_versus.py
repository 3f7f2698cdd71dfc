"""Example 5: the comparison runs to its end on a small scale, with a fleet of its own.

Takes minutes, since three ways start engines: `pytest -m on_demand tests/e2e/test_versus.py`.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.versus_table import BATCHYARD, RAY_DATA, RUN_BATCH, SYNC
from tests.e2e.conftest import COLD_SECONDS

_CASES = ("--case", "1x4", "--case", "2x2", "--tokens", "8", "--most", "1")


@pytest.mark.on_demand
@pytest.mark.timeout(COLD_SECONDS)
def test_all_ways_are_measured_side_by_side(tmp_path: Path) -> None:
    results = tmp_path / "results.json"

    ended = subprocess.run(
        [sys.executable, "-m", "benchmarks.versus", *_CASES, "--results", results],
        capture_output=True,
        text=True,
        timeout=COLD_SECONDS,
        check=False,
    )

    assert ended.returncode == 0, ended.stderr[-4000:]
    times = json.loads(results.read_text())["times"]
    assert [(one["batches"], one["rows"], one["way"]) for one in times] == [
        (*case, way) for case in ((1, 4), (2, 2)) for way in (BATCHYARD, SYNC, RAY_DATA, RUN_BATCH)
    ]
    assert all(one["work"] > 0 for one in times)
    table = [line.split(" | ") for line in ended.stdout.splitlines() if line.startswith("| ")]
    assert {"| 1 x 4", "| 2 x 2"} <= {row[0] for row in table}
