"""Whether each row of a batch has exactly one result line. Pure."""

from shared import ids
from shared.errors import BatchyardError


class IncompleteError(BatchyardError):
    """A row has no result or two; the batch must not be completed."""


class RowCheck:
    """Which rows have a line, and whether any has two; one byte a row."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._seen = bytearray(total)
        self._repeated: int | None = None

    def __contains__(self, row: int) -> bool:
        return bool(self._seen[row])

    def add(self, row: int) -> None:
        """Note that the row has a line."""
        if row >= self._total or self._seen[row]:
            self._repeated = row
        else:
            self._seen[row] = 1

    def add_lines(self, lines: bytes) -> None:
        """Note the rows of these result lines."""
        for line in lines.split(b"\n"):
            if line:
                self.add(ids.row_of_result(line))

    def finish(self, batch_id: str) -> None:
        """Raise IncompleteError unless every row was added exactly once."""
        if self._repeated is not None:
            raise IncompleteError(f"Batch {batch_id}: row {self._repeated} has two results.")
        if (row := self._seen.find(0)) >= 0:
            raise IncompleteError(f"Batch {batch_id}: row {row} has no result.")
