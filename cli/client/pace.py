"""How fast a batch's rows end, and how long the others will take. Pure."""

from collections import deque
from typing import NamedTuple

#: A rate is measured over at least this many seconds; the slowest and the fastest give a range.
_WINDOWS = (10.0, 60.0, 300.0)
_MIN_SECONDS = 1.0


class _Mark(NamedTuple):
    at: float
    done: int


class Pace:
    """Takes how many rows were done at which time, in order, and keeps five minutes of it."""

    def __init__(self) -> None:
        self._marks: deque[_Mark] = deque()

    def note(self, done: int, at: float) -> None:
        """Take the number of rows that are done at `at`, in seconds of any clock."""
        if self._marks and self._marks[-1].done == done:
            return
        self._marks.append(_Mark(at, done))
        # One mark from before the window begins the window.
        while len(self._marks) > 1 and self._marks[1].at < at - _WINDOWS[-1]:
            self._marks.popleft()

    def rate(self, now: float) -> float | None:
        """Rows per second during the last minute; None before there is a measurement."""
        return self._rate(now, _WINDOWS[1])

    def seconds_left(self, total: int, now: float) -> tuple[float, float] | None:
        """The shortest and the longest time that the other rows may take."""
        rates = [rate for window in _WINDOWS if (rate := self._rate(now, window))]
        if not rates:
            return None
        left = total - self._marks[-1].done
        return left / max(rates), left / min(rates)

    def _rate(self, now: float, window: float) -> float | None:
        if not self._marks:
            return None
        # Rows come in groups: those of the first mark were begun before it.
        before = [mark for mark in self._marks if mark.at <= now - window]
        first = before[-1] if before else self._marks[0]
        seconds = now - first.at
        rows = self._marks[-1].done - first.done
        return rows / seconds if rows and seconds >= _MIN_SECONDS else None
