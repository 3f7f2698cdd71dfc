"""How many replicas of an engine the rows that wait need, so that they are done in time. Pure."""

import math
from collections.abc import Iterable

from shared.ordering.deadlines import SLACK_RATIO, SLACK_SECONDS
from shared.ordering.outlook import BatchLoad

#: What a replica did this many busy seconds ago counts about a third of what it does now.
_MEMORY_SECONDS = 300.0
#: Less busy time than this says nothing: rows are committed in slices.
_LEAST_SECONDS = 10.0


class ReplicaRate:
    """How fast one replica is that is full of rows."""

    def __init__(self, *, seats: int) -> None:
        """`seats` are the rows that one replica computes at once."""
        self._seats = seats
        self._tokens = self._seconds = 0.0
        self._before: tuple[float, float] | None = None

    def measure(self, tokens: float, now: float, *, replicas: int, rows: int) -> None:
        """Note how many tokens were predicted of all rows that are done by now.

        So many `replicas` run now, and have so many `rows` together.
        """
        if self._before is not None:
            before, at = self._before
            busy = (now - at) * min(float(replicas), rows / self._seats)
            kept = math.exp(-busy / _MEMORY_SECONDS)
            self._tokens = kept * self._tokens + max(0.0, tokens - before)
            self._seconds = kept * self._seconds + busy
        self._before = tokens, now

    def skip(self) -> None:
        """Leave out the time until the next note."""
        self._before = None

    @property
    def tokens_per_second(self) -> float:
        """0 while it is not known."""
        return self._tokens / self._seconds if self._seconds >= _LEAST_SECONDS else 0.0


def replicas_needed(
    batches: Iterable[BatchLoad], *, tokens_per_second: float, now: float, backlog_seconds: float
) -> float:
    """How many replicas, each with this rate, the rows of these batches need.

    All rows that are due before the end of a window are done by then, and all rows together in
    `backlog_seconds`. While the rate is not known, one replica finds it out.
    """
    if tokens_per_second <= 0:
        return 1.0
    needed = seconds = 0.0
    for batch in sorted(batches, key=lambda batch: batch.expires_at):
        seconds += batch.tokens_left / tokens_per_second
        left = (batch.expires_at - now - SLACK_SECONDS) / (1 + SLACK_RATIO)
        needed = max(needed, seconds / max(1.0, left))
    return max(needed, seconds / backlog_seconds)
