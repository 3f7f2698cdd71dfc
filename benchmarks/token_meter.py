"""Tokens a second of a fleet's engines, by what they have counted themselves.

Rows of a batch are known to be done by whole slices: over a few seconds that says little.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec

from benchmarks.bench_fleet import BenchFleet


class TokenMeter:
    """Asks all replicas of one model."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def rate(self, work: Callable[[], int]) -> float:
        """Tokens a second during some work, but for those that the work returns as its own."""
        before = self._look()
        own = work()
        after = self._look()
        # Each replica has a clock of its own.
        rates = [
            (tokens - before[replica][1]) / (clock - before[replica][0])
            for replica, (clock, tokens) in after.items()
            if replica in before
        ]
        seconds = max(after[one][0] - before[one][0] for one in before if one in after)
        return sum(rates) - own / seconds

    def _look(self) -> dict[str, tuple[float, int]]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        return msgspec.json.decode(line, type=dict[str, tuple[float, int]])


@contextmanager
def token_meter(fleet: BenchFleet, kind: str) -> Iterator[TokenMeter]:
    """One for the fleet's model of this kind, whose engine runs."""
    command = [sys.executable, "-m", "benchmarks.cluster", "computed"]
    with subprocess.Popen(
        [*command, str(fleet.catalog), fleet.models[kind]],
        env={**os.environ, **fleet.fleet.ray.environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            meter = TokenMeter(process)
            # Until it is a client of Ray.
            meter.rate(lambda: 0)
            yield meter
        finally:
            process.kill()
