"""Measures the pace of a lane's engine, second by second. Pure."""

from collections.abc import Mapping

from shared.ordering.pace import Done, Pace


class PaceMeter:
    """The pace of one lane's engine, from when a lane job begins."""

    def __init__(self, *, seats: int) -> None:
        """`seats` are the rows that the engine computes at once."""
        self._seats = seats
        self._pace: Pace | None = None
        self._counted: Mapping[str, Done] | None = None
        self._at = 0.0
        self._busy_seconds = 0.0

    @property
    def pace(self) -> Pace:
        return self._pace or Pace()

    def measure(
        self,
        done: Mapping[str, Done],
        now: float,
        *,
        rows_claimed: int,
        is_running: bool,
        known: Pace,
    ) -> None:
        """Note what the lane has done so far, and how many rows its engine has now.

        `known` is what the lane job before this one has learned. While the engine starts, it is not
        `is_running`, and the time does not count. Half as many rows as seats keep it half busy.
        """
        if self._pace is None or self._counted is None:
            self._pace = known
        else:
            if is_running:
                self._busy_seconds += (now - self._at) * min(1.0, rows_claimed / self._seats)
            new = {kind: _since(self._counted.get(kind, Done()), one) for kind, one in done.items()}
            learned = self._pace.learn(new, self._busy_seconds)
            if learned is not self._pace:
                self._pace, self._busy_seconds = learned, 0.0
        self._counted, self._at = done, now


def _since(before: Done, after: Done) -> Done:
    return Done(*(new - old for old, new in zip(before, after, strict=True)))
