"""Each outage for a few seconds, one after the other; `make outages` takes a minute for each."""

import subprocess
import sys
from pathlib import Path

import pytest

from cli import servers
from tests.servers import absent

_ROOT = Path(__file__).parents[2]


@pytest.mark.on_demand
@pytest.mark.timeout(1800)
def test_each_outage_is_named_answered_and_survived(tmp_path: Path) -> None:
    if servers.missing(("rabbitmq", "redis", "ceph")):
        absent("RabbitMQ, Redis and Ceph on this machine", "PATH")
    command = [sys.executable, "-m", "tests.chaos.outages", "--seconds", "8", "--seed", "20260102"]

    ended = subprocess.run(
        [*command, "--folder", str(tmp_path)],
        cwd=_ROOT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert ended.returncode == 0, f"{ended.stdout[-6000:]}\n{ended.stderr[-6000:]}"
