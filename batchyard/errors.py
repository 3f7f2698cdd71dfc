"""What can go wrong, besides what `shared.errors` has. Pure."""

from collections.abc import Sequence
from typing import Any

from shared.errors import BatchyardError


class BatchFailedError(BatchyardError):
    """The batch failed as a whole: no row was asked, or there is no table.

    `problems` are the gateway's errors, each with a `code`, a `message` and perhaps a `line`.
    """

    def __init__(
        self, message: str, *, batch_id: str, problems: Sequence[dict[str, Any]] = ()
    ) -> None:
        super().__init__(message)
        self.batch_id = batch_id
        self.problems = problems


class RowsFailed(BatchyardError):  # noqa: N818  # what a caller asked for, rather than a mishap
    """Some rows have an error. `table` is what `run` would have returned, with `count` of them."""

    def __init__(self, table: Any, count: int, batch_id: str) -> None:
        super().__init__(f"{count} rows of {batch_id} have an error: see the column 'error'.")
        self.table = table
        self.count = count
        self.batch_id = batch_id
