"""Named places where a test may kill this process, to prove that what is promised survives it."""

import os
import signal
from collections import Counter
from pathlib import Path

_passed: Counter[str] = Counter()


def point(name: str) -> None:
    """Die here, without cleaning up, if BATCHYARD_CRASH_AT names it; otherwise do nothing.

    It holds names with commas between them; `name:3` dies the third time. BATCHYARD_CRASH_LOG names
    a file that learns of it first.
    """
    if not (wanted := os.environ.get("BATCHYARD_CRASH_AT")):
        return
    times = {at: int(nth or 1) for at, _, nth in (one.partition(":") for one in wanted.split(","))}
    if name not in times:
        return
    _passed[name] += 1
    if _passed[name] < times[name]:
        return
    if log := os.environ.get("BATCHYARD_CRASH_LOG"):
        with Path(log).open("a") as file:
            file.write(f"{name}\n")
    os.kill(os.getpid(), signal.SIGKILL)
