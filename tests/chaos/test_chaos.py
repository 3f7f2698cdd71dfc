"""A short run: every named point, and then a plan of faults from a fixed seed."""

import subprocess
import sys
from pathlib import Path

import pytest

from cli import servers
from tests.servers import absent

_ROOT = Path(__file__).parents[2]


# About three minutes; what has not moved for many of them is no question of the machine's speed.
@pytest.mark.timeout(1800)
def test_a_short_run_breaks_no_promise(tmp_path: Path) -> None:
    if servers.missing(("rabbitmq", "redis", "ceph")):
        absent("RabbitMQ, Redis and Ceph on this machine", "PATH")
    command = [sys.executable, "-m", "tests.chaos", "--points", "--seed", "20260101"]
    length = ["--minutes", "2", "--gap", "1", "--folder", str(tmp_path)]

    ended = subprocess.run(
        [*command, *length], cwd=_ROOT, capture_output=True, text=True, check=False
    )

    assert ended.returncode == 0, f"{ended.stdout[-6000:]}\n{ended.stderr[-6000:]}"
