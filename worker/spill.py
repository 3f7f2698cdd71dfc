"""Chooses the pool that runs a model's rows: the first one that can place an engine. Pure.

The work stays in the lane of the first pool. Only the engine runs on another pool.
"""

from collections.abc import Sequence
from typing import NamedTuple


class PoolStatus(NamedTuple):
    """A pool's engine as Ray shows it."""

    #: A replica answers.
    runs: bool = False
    #: Ray has found a machine for it, though it may still be loading.
    is_placed: bool = False
    #: Why it cannot start at all.
    failure: str | None = None

    @property
    def has_room(self) -> bool:
        return self.runs or self.is_placed


class Choice(NamedTuple):
    """What to do now. Pools are given by their positions in the order of preference."""

    #: The pool whose engine takes rows; None while none can.
    runs_on: int | None
    #: For how many pools, from the first on, an engine is requested.
    requested: int
    #: When another pool is tried; None while the last one loads, or if no pool is left.
    next_request_at: float | None
    #: Why no pool's engine can ever start.
    failure: str | None = None


class Spill:
    """Requests an engine on another pool when the last one could not place it in time."""

    def __init__(self, wait_seconds: float) -> None:
        self._wait_seconds = wait_seconds
        self._requested = 1
        self._waiting_since: float | None = None

    def reset(self) -> None:
        """Begin with the first pool again, because there is no work."""
        self._requested, self._waiting_since = 1, None

    def decide(self, pools: Sequence[PoolStatus], now: float) -> Choice:
        """What to do, given the status of each pool at this time."""
        if pools[0].runs:
            self.reset()
            return Choice(0, 1, None)
        failures = [pool.failure for pool in pools if pool.failure is not None]
        if len(failures) == len(pools):
            return Choice(None, self._requested, None, failures[0])
        last = pools[self._requested - 1]
        if self._waiting_since is None or last.has_room:
            self._waiting_since = now
        has_waited = now - self._waiting_since >= self._wait_seconds or last.failure is not None
        if has_waited and not last.has_room and self._requested < len(pools):
            self._requested, self._waiting_since = self._requested + 1, now
        runs_on = next((place for place, pool in enumerate(pools) if pool.runs), None)
        is_waiting = self._requested < len(pools) and not last.has_room
        next_at = self._waiting_since + self._wait_seconds if is_waiting else None
        return Choice(runs_on, self._requested, next_at)
