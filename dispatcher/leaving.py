"""Lets ended batches leave Redis for S3, so that Redis grows with what is alive.

The record is in S3 before it leaves, and only a record that is the same there leaves. So the
process may die anywhere, and the next one does it again.
"""

import asyncio
import time

import structlog

from shared import crash
from shared.ledger.batch_records import create_record
from shared.state import State
from shared.state.away import StoredRecord
from shared.storage import Storage

log = structlog.get_logger()

_TOGETHER = 64
#: Records that are written at the same time: others need S3 too.
_AT_ONCE = 8


async def let_leave(state: State, storage: Storage, *, seconds: float) -> None:
    """Let batches leave that ended, or came back, more than `seconds` ago."""
    before = time.time() - seconds
    room = asyncio.Semaphore(_AT_ONCE)

    async def leave(stored: StoredRecord, edition: int) -> str:
        async with room:
            if stored.fields:
                edition = await create_record(storage, stored, edition)
                crash.point("leaving.kept")
            return await state.away.leave(stored, edition)

    left = 0
    while batch_ids := await state.away.due(before, limit=_TOGETHER):
        found = await state.away.read_here(batch_ids)
        outcomes = await asyncio.gather(*(leave(*one) for one in found))
        left += outcomes.count("left")
        if len(batch_ids) < _TOGETHER:
            break
    if left:
        log.info("batches.left", batches=left)
