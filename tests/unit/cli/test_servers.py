import subprocess
import sys
from pathlib import Path

import pytest

from cli.servers.process import all_in_turn

_ROOT = Path(__file__).parents[3]


def test_servers_can_be_started_where_no_package_is_installed() -> None:
    # The image that stands in for an S3 server has only Python and Ceph.
    subprocess.run([sys.executable, "-S", "-c", "import cli.servers"], cwd=_ROOT, check=True)


def test_what_follows_a_step_that_fails_is_done_too() -> None:
    done = []

    def fail() -> None:
        raise TimeoutError("It does not end.")

    with pytest.raises(TimeoutError):
        all_in_turn([lambda: done.append("gateway"), fail, lambda: done.append("storage")])

    assert done == ["gateway", "storage"]
