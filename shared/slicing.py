"""Cuts a batch into slices: consecutive rows up to a number and a sum of predicted tokens. Pure.

A stretch ends as soon as one lane's slice in it is full. It has one slice for each lane that has
rows in it, so the next stretch begins where all of them end.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from shared.slices import Slice

#: Slices of an engine with few seats have as many rows: fewer are not worth their reads and writes.
_MIN_ROWS = 128


@dataclass(frozen=True)
class SliceLimits:
    """The maximum of a slice; `bytes` is that of a stretch. A larger row has a slice of its own."""

    rows: int = 512
    tokens: int = 32_768
    bytes: int = 8 * 1024 * 1024

    def of_engine(self, seats: int) -> Self:
        """The limits for an engine with so many seats: it runs several slices side by side."""
        return replace(self, rows=min(self.rows, max(_MIN_ROWS, 2 * seats)))


class Slicer:
    """Takes rows in order and gives slices back as they fill."""

    def __init__(self, limits: SliceLimits) -> None:
        self._limits = limits
        self._first_row = 0
        self._start = 0
        self._rows = 0
        self._shares: dict[int, _Share] = {}

    def add(
        self, start: int, end: int, tokens: int, lane: int = 0, *, most_rows: int | None = None
    ) -> Sequence[Slice]:
        """Add the row in bytes [start, end); returns the slices of the stretch that it ended.

        `most_rows` is the limit of the lane's slices, where it is another one.
        """
        limits, share = self._limits, self._shares.get(lane)
        is_full = share is not None and (
            share.rows + 1 > (most_rows or limits.rows) or share.tokens + tokens > limits.tokens
        )
        finished: Sequence[Slice] = ()
        if is_full or (self._rows and end - self._start > limits.bytes):
            finished, share = self.finish(), None
        if self._rows == 0:
            self._start = start
        if share is None:
            share = self._shares[lane] = _Share(start)
        share.end = end
        share.rows += 1
        share.tokens += tokens
        share.mask |= 1 << self._rows
        self._rows += 1
        return finished

    def finish(self) -> Sequence[Slice]:
        """End the stretch; returns its slices, and none if it has no rows."""
        slices = [
            Slice(
                share.start,
                share.end,
                self._first_row,
                share.rows,
                share.tokens,
                lane,
                "" if share.rows == self._rows else f"{share.mask:x}",
            )
            for lane, share in self._shares.items()
        ]
        self._first_row += self._rows
        self._rows = 0
        self._shares = {}
        return slices

    @property
    def next_row(self) -> int:
        """The number of the row that comes next."""
        return self._first_row + self._rows

    def skip(self, rows: int) -> Sequence[Slice]:
        """End the stretch, and leave out so many rows; returns the stretch's slices."""
        finished = self.finish()
        self._first_row += rows
        return finished


class _Share:
    """The part of a stretch that one lane runs."""

    __slots__ = ("end", "mask", "rows", "start", "tokens")

    def __init__(self, start: int) -> None:
        self.start = self.end = start
        self.rows = self.tokens = self.mask = 0
