"""Named places where a test may kill this process, to prove that what is promised survives it."""

import os
import signal
from pathlib import Path


def point(name: str) -> None:
    """Die here, without cleaning up, if BATCHYARD_CRASH_AT is `name`; otherwise do nothing.

    BATCHYARD_CRASH_LOG names a file that learns of it first.
    """
    if os.environ.get("BATCHYARD_CRASH_AT") != name:
        return
    if log := os.environ.get("BATCHYARD_CRASH_LOG"):
        with Path(log).open("a") as file:
            file.write(f"{name}\n")
    os.kill(os.getpid(), signal.SIGKILL)
