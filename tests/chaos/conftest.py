"""The commands of this folder, run as a developer runs them."""

import subprocess
import sys
from pathlib import Path

from cli import servers
from tests.servers import absent

_ROOT = Path(__file__).parents[2]
_LAST_LINES = 8


def assert_survived(module: str, *arguments: str, folder: Path) -> None:
    """Run the module with a folder for its files, and show the end of its output if it fails."""
    if servers.missing(("rabbitmq", "redis", "ceph")):
        absent("RabbitMQ, Redis and Ceph on this machine", "PATH")

    ended = subprocess.run(
        [sys.executable, "-m", module, *arguments, "--folder", str(folder)],
        cwd=_ROOT,
        capture_output=True,
        text=True,
        check=False,
    )

    # What went wrong is said last, and of a failure only the first line is shown in the end.
    last = " | ".join(ended.stdout.splitlines()[-_LAST_LINES:])
    assert ended.returncode == 0, f"{last}\n{ended.stdout[-6000:]}\n{ended.stderr[-6000:]}"
