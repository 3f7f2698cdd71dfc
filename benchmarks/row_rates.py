"""Rows of batches a second while something is done, from how many of them are done."""

import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

#: Of the number of rows, for its rate to be told.
_FEWEST_CHANGES = 3
_BURST_SECONDS = 0.5
_LOOK_SECONDS = 0.1


def rate_during(do: Callable[[], object], done: Callable[[], int]) -> float:
    """The rate while something is done, from the first progress meanwhile to the last."""
    seen = list[tuple[float, int]]()
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.wait(_LOOK_SECONDS):
            count = done()
            if not seen or count > seen[-1][1]:
                seen.append((time.perf_counter(), count))

    began = time.perf_counter()
    with ThreadPoolExecutor(1) as pool:
        watching = pool.submit(watch)
        try:
            do()
        finally:
            is_over.set()
        # What it could not read, it raises.
        watching.result()
    return rate_of(seen, time.perf_counter() - began)


def rate_of(seen: list[tuple[float, int]], seconds: float) -> float:
    """Rows a second, by each new number of rows and when it was seen, in a phase of so long."""
    bursts = _bursts(seen)
    if len(bursts) >= _FEWEST_CHANGES:
        seen = bursts
    if len(seen) < _FEWEST_CHANGES or seen[-1][0] - seen[1][0] < seconds / 2:
        # Too few to tell when rows came: all that did, over all of the time.
        return (seen[-1][1] - seen[0][1]) / seconds
    # The first number was reached at an unknown time.
    (began, before), (ended, after) = seen[1], seen[-1]
    return (after - before) / (ended - began)


def _bursts(seen: list[tuple[float, int]]) -> list[tuple[float, int]]:
    """The last of changes that follow each other closely: many rows of a length end together."""
    last = zip(seen, [*seen[1:], (math.inf, 0)], strict=True)
    return [one for one, following in last if following[0] - one[0] > _BURST_SECONDS]
