import subprocess
import sys
from pathlib import Path

_ROOT = Path(__file__).parents[3]


def test_servers_can_be_started_where_no_package_is_installed() -> None:
    # The image that stands in for an S3 server has only Python and Ceph.
    subprocess.run([sys.executable, "-S", "-c", "import cli.servers"], cwd=_ROOT, check=True)
