"""Inputs that the dispatcher makes: files of the tenant's, which everything else reads."""

import time

from shared.state import BatchRecord, FileRecord
from shared.storage import Storage, Stored


def made_input(
    record: BatchRecord, file_id: str, stored: Stored, *, storage: Storage, seconds: int
) -> FileRecord:
    """The record of a batch's input that was just uploaded, and is kept for so many seconds."""
    return FileRecord.stored(
        file_id,
        record.tenant,
        stored,
        bucket=storage.bucket,
        created_at=int(time.time()),
        seconds=seconds,
        filename=f"{record.id}_input.jsonl",
        purpose="batch",
    )
