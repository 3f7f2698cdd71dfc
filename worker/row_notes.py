"""Which rows of one call to the engine are worth a note in its span: failed and slow ones. Pure.

Rows have no spans: there may be millions. Only samples are named, and all are counted.
"""

from collections.abc import Iterator
from statistics import median
from typing import NamedTuple

#: Failed rows, and slow ones, that a span names.
SAMPLES = 3
#: A row is slow if it took so many times as long as the middle one of its call, and so many seconds
#: longer.
_SLOW_TIMES, _SLOW_SECONDS = 2.0, 1.0
_FIRST_ERROR = 400


class RowNote(NamedTuple):
    """A row's number in its input, the status of its result, and seconds since the call began."""

    number: int
    status: int
    seconds: float


class RowNotes:
    """The rows of a call, in the order of their results."""

    def __init__(self) -> None:
        self._rows: list[RowNote] = []

    def add(self, row: RowNote) -> None:
        """Note a row that has its result."""
        self._rows.append(row)

    @property
    def failed(self) -> list[RowNote]:
        return [row for row in self._rows if row.status >= _FIRST_ERROR]

    @property
    def slow(self) -> list[RowNote]:
        """The slowest first."""
        if not self._rows:
            return []
        middle = median(row.seconds for row in self._rows)
        limit = max(_SLOW_TIMES * middle, middle + _SLOW_SECONDS)
        found = [row for row in self._rows if row.seconds > limit]
        return sorted(found, key=lambda row: -row.seconds)

    def samples(self) -> Iterator[tuple[str, RowNote]]:
        """What the span names, each with the name of its event."""
        for row in self.failed[:SAMPLES]:
            yield "row.failed", row
        for row in self.slow[:SAMPLES]:
            yield "row.slow", row
