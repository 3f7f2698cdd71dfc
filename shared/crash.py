"""Named points at which a test may kill this process, to prove that nothing is lost."""

import os
import signal
from collections import Counter
from functools import cache
from pathlib import Path

_passed: Counter[str] = Counter()


def point(name: str) -> None:
    """Kill this process, without cleaning up, if BATCHYARD_CRASH_AT contains `name`.

    BATCHYARD_CRASH_AT is a list of names separated by commas. `name:3` kills at the third pass. If
    BATCHYARD_CRASH_LOG names a file, the name is appended to it first.
    """
    if name not in (times := _times()):
        return
    _passed[name] += 1
    if _passed[name] < times[name]:
        return
    if log := os.environ.get("BATCHYARD_CRASH_LOG"):
        with Path(log).open("a") as file:
            file.write(f"{name}\n")
    os.kill(os.getpid(), signal.SIGKILL)


@cache
def _times() -> dict[str, int]:
    """By a point's name, the pass that kills. Read once, because a message passes many points."""
    wanted = os.environ.get("BATCHYARD_CRASH_AT") or ""
    named = (one.partition(":") for one in wanted.split(",") if one)
    return {at: int(nth or 1) for at, _, nth in named}
