"""How long calls of other services take: a histogram for each service, of this process alone."""

import time
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, NamedTuple

Service = Literal["redis", "s3", "rabbitmq"]

#: Upper bounds in seconds.
BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Times(NamedTuple):
    """Calls of one service by their outcome, since the process began."""

    service: Service
    is_ok: bool
    #: How many took at most each of BOUNDS, and how many took longer.
    counts: list[int]
    seconds: float


_counts: dict[tuple[Service, bool], list[int]] = {}
_sums: dict[tuple[Service, bool], float] = {}


@contextmanager
def timed(service: Service) -> Iterator[None]:
    """Count the call in the block, with the time that it takes."""
    began = time.perf_counter()
    is_ok = False
    try:
        yield
        is_ok = True
    finally:
        seconds = time.perf_counter() - began
        counts = _counts.setdefault((service, is_ok), [0] * (len(BOUNDS) + 1))
        counts[bisect_left(BOUNDS, seconds)] += 1
        _sums[service, is_ok] = _sums.get((service, is_ok), 0.0) + seconds


def call_times() -> list[Times]:
    """All calls so far."""
    return [
        Times(service, is_ok, list(counts), _sums.get((service, is_ok), 0.0))
        for (service, is_ok), counts in sorted(_counts.items())
    ]
