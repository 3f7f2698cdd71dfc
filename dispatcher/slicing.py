"""Cuts a batch into slices: consecutive rows up to a count and a sum of predicted tokens. Pure."""

from dataclasses import dataclass

from shared.slices import Slice


@dataclass(frozen=True)
class SliceLimits:
    """What a slice may hold; a single larger row is a slice of its own."""

    rows: int = 128
    tokens: int = 32_768
    bytes: int = 8 * 1024 * 1024


class Slicer:
    """Takes rows in order and gives slices back as they fill."""

    def __init__(self, limits: SliceLimits) -> None:
        self._limits = limits
        self._next_row = 0
        self._start = 0
        self._end = 0
        self._rows = 0
        self._tokens = 0

    def add(self, start: int, end: int, tokens: int) -> Slice | None:
        """Append the row in bytes [start, end); returns the slice that it did not fit into."""
        full = self._rows > 0 and (
            self._rows + 1 > self._limits.rows
            or self._tokens + tokens > self._limits.tokens
            or end - self._start > self._limits.bytes
        )
        finished = self.finish() if full else None
        if self._rows == 0:
            self._start = start
        self._end = end
        self._rows += 1
        self._tokens += tokens
        return finished

    def finish(self) -> Slice | None:
        """The last slice, or None when there is no row in it."""
        if self._rows == 0:
            return None
        first = self._next_row
        self._next_row += self._rows
        finished = Slice(self._start, self._end, first, self._rows, self._tokens)
        self._rows = self._tokens = 0
        return finished
