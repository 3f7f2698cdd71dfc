"""All reasons why a batch failed, for whoever looks at it."""

import asyncio
from collections.abc import Sequence

import structlog

from shared.errors import BrokenObjectError, NotFoundError
from shared.ledger.commits import read_commit
from shared.ledger.endings import event_of
from shared.ledger.reasons import LEFT_OUT
from shared.openai.shapes import Batch
from shared.state import BatchRecord
from shared.storage import Storage

log = structlog.get_logger()


async def shown(storage: Storage, records: Sequence[BatchRecord]) -> list[Batch]:
    """The batches as HTTP shows them, with the reasons that only S3 has. Raises TransientError."""
    whole = await asyncio.gather(*(_with_reasons(storage, record) for record in records))
    return [record.to_openai() for record in whole]


async def _with_reasons(storage: Storage, record: BatchRecord) -> BatchRecord:
    if LEFT_OUT not in record.fields:
        return record
    try:
        commit = await read_commit(storage, record.id, event_of(record))
    except (NotFoundError, BrokenObjectError) as error:
        # The first reasons are better than none.
        log.warning("batch.reasons_lost", batch_id=record.id, reason=str(error))
        return record
    return BatchRecord({**record.fields, "errors": str(commit.fields["errors"])})
