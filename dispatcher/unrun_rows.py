"""Error lines of rows that never ran, and the reasons for them. Decides, and writes nothing."""

import json
from functools import lru_cache
from typing import NamedTuple

from shared.lifecycle import Status
from shared.slices import PlannedSlice
from shared.state import BatchRecord
from shared.unanswered import unanswered_line


class UnrunReason(NamedTuple):
    """Why a row did not run, in OpenAI's words."""

    code: str
    message: str


#: By the status of a batch that is closing.
CLOSING_REASONS = {
    Status.FINALIZING: UnrunReason(
        "batch_expired", "This request could not be executed before the completion window expired."
    ),
    Status.CANCELLING: UnrunReason(
        "batch_cancelled", "This request was not executed because the batch was cancelled."
    ),
}


def reason_for(
    record: BatchRecord, planned: PlannedSlice, closing: UnrunReason | None
) -> UnrunReason | None:
    """Why rows of the slice did not run; None if all ran, or should have.

    `closing` is why the batch ends early, if it does.
    """
    part = planned.part
    if part is not None and part.rows == planned.slice.rows:
        return None
    failure = record.fields.get(f"lane_failed:{record.lanes[planned.slice.lane]}")
    return UnrunReason("engine_failed", failure) if failure is not None else closing


def error_line(batch_id: str, row: int, custom_id: str | None, reason: UnrunReason) -> bytes:
    """The row's line in the error file."""
    return unanswered_line(batch_id, row, custom_id, _error(reason))


@lru_cache(maxsize=64)
def _error(reason: UnrunReason) -> bytes:
    """The same for each of thousands of rows."""
    return json.dumps(reason._asdict(), separators=(",", ":")).encode()
