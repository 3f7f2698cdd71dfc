"""On which of a model's pools its rows run: the first one with room for the engine. Pure.

The work stays in the lane of the first pool; only the engine is another one's.
"""

from collections.abc import Sequence
from typing import NamedTuple


class Sight(NamedTuple):
    """A pool's engine as Ray shows it."""

    #: A replica answers.
    runs: bool = False
    #: A machine was found for it; it may still be loading.
    is_placed: bool = False
    #: Why it cannot start at all.
    failure: str | None = None


class Choice(NamedTuple):
    """Pools by their place in the order of preference."""

    #: Whose engine takes rows; None while none can.
    use: int | None
    #: So many, from the first on, are asked for an engine.
    asked: int
    #: When one more is asked; None while the last one loads, or is the last of all.
    next_at: float | None
    #: Why no pool's engine can ever start.
    failure: str | None = None


class Spill:
    """Asks one pool more whenever the last one asked has had no room for long enough."""

    def __init__(self, wait_seconds: float) -> None:
        self._wait_seconds = wait_seconds
        self._asked = 1
        self._since: float | None = None

    def rest(self) -> None:
        """There is no work: what comes next begins with the first pool."""
        self._asked, self._since = 1, None

    def look(self, sights: Sequence[Sight], now: float) -> Choice:
        """What to do now."""
        if sights[0].runs:
            self.rest()
            return Choice(0, 1, None)
        failures = [sight.failure for sight in sights if sight.failure is not None]
        if len(failures) == len(sights):
            return Choice(None, self._asked, None, failures[0])
        last = sights[self._asked - 1]
        has_room = last.runs or last.is_placed
        if self._since is None or has_room:
            self._since = now
        is_over = now - self._since >= self._wait_seconds or last.failure is not None
        if is_over and not has_room and self._asked < len(sights):
            self._asked, self._since = self._asked + 1, now
        use = next((place for place, sight in enumerate(sights) if sight.runs), None)
        is_waiting = self._asked < len(sights) and not has_room
        return Choice(use, self._asked, self._since + self._wait_seconds if is_waiting else None)
