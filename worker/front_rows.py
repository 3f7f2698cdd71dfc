"""The rows that a front has not begun: which begin next, and whether what they send waits.

Rows come by the hundred, and each takes a part of a millisecond. What comes meanwhile, a row of a
small batch or what the core has made for one, would wait for all of them. So a few begin at a time.
"""

from itertools import chain, islice

from worker.front_link import Row

#: Rows that begin at a time. With fewer, those of texts cost a tenth more.
VECTORS_AT_A_TIME, TEXTS_AT_A_TIME = 4, 16
#: What they send is kept for so many seconds, as long as others begin: each message costs the
#: replica as much as a row.
KEPT_SECONDS = 0.05


class FrontRows:
    """In the order of their coming, those of small batches first. Times are of a steady clock."""

    def __init__(self, at_a_time: int) -> None:
        """So many begin at a time."""
        self._at_a_time = at_a_time
        self._first: dict[int, Row] = {}
        self._others: dict[int, Row] = {}
        #: Since when what they send is kept.
        self._kept_at = 0.0
        #: Whether what they send goes at once the next time, too: rows of small batches send after
        #: the call of `take` that they begin with.
        self._was_urgent = False
        #: Whether the messages of those that have begun wait for those of others.
        self.are_kept = False

    def __len__(self) -> int:
        return len(self._first) + len(self._others)

    def add(self, row: Row) -> None:
        """A row has come."""
        (self._first if row.is_first else self._others)[row.number] = row

    def forget(self, number: int) -> None:
        """Nobody wants this one any more; it may have begun."""
        self._first.pop(number, None)
        self._others.pop(number, None)

    def take(self, now: float) -> list[Row]:
        """Those that begin now."""
        is_urgent = bool(self._first)
        rows = list(islice(chain(self._first.values(), self._others.values()), self._at_a_time))
        for row in rows:
            self.forget(row.number)
        if not self.are_kept:
            self._kept_at = now
        is_due = now - self._kept_at >= KEPT_SECONDS
        self.are_kept = len(self) > 0 and not (is_due or is_urgent or self._was_urgent)
        self._was_urgent = is_urgent
        return rows
