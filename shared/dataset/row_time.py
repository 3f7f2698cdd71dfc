"""Bounds the time that one row may take, in a process that runs a tenant's template."""

import signal
from collections.abc import Callable
from types import FrameType
from typing import TypeVar

T = TypeVar("T")

#: How many times the time that it may take ends the process.
_TIMES_TO_THE_END = 2


def heed_row_time() -> None:
    """Let `bounded` raise in this process."""
    signal.signal(signal.SIGVTALRM, _too_slow)


def bounded(seconds: float, work: Callable[[], T]) -> T:
    """What `work` returns. Raises TimeoutError, or ends the process, if it takes too long.

    The seconds are a processor's: a machine that stands still is not the tenant's fault.
    """
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    # Code that no handler interrupts, as a power of huge numbers, ends with the process.
    signal.setitimer(signal.ITIMER_PROF, _TIMES_TO_THE_END * seconds)
    try:
        return work()
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.setitimer(signal.ITIMER_PROF, 0)


def _too_slow(_: int, __: FrameType | None) -> None:
    raise TimeoutError
