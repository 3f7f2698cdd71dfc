"""Records of ended batches: all that Redis had of each. Created in S3 before they leave Redis."""

import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress

import structlog

from shared.errors import BrokenObjectError, NotFoundError
from shared.ledger.commits import ENDS, read_commit
from shared.ledger.manifests import batch_folder
from shared.ledger.reasons import shortened
from shared.ledger.records import answered, encoded, read_record
from shared.lifecycle import TRANSITIONS
from shared.state import State
from shared.state.away import StoredRecord
from shared.storage import Storage

log = structlog.get_logger()

#: Records that a process remembers. Each has a few kilobytes.
_REMEMBERED = 500
#: For how long. Ids may be used again once a batch is forgotten, and what has such an id leaves a
#: minute after its end at the earliest.
_REMEMBERED_SECONDS = 50.0


def record_key(batch_id: str, edition: int) -> str:
    """The S3 key of an edition of the batch's record."""
    return f"{batch_folder(batch_id)}record-{edition}.json"


async def create_record(storage: Storage, stored: StoredRecord, edition: int) -> int:
    """Create the record in S3. Returns the edition that has it: this one, or the first free one.

    No edition is ever overwritten, so whoever comes late can undo nothing.
    """
    while not await storage.create(record_key(stored.batch_id, edition), encoded(stored)):
        with suppress(BrokenObjectError, NotFoundError):
            if await read_batch_record(storage, stored.batch_id, edition) == stored:
                return edition
        edition += 1
    return edition


async def read_batch_record(storage: Storage, batch_id: str, edition: int) -> StoredRecord:
    """The record. Raises NotFoundError and BrokenObjectError."""
    key = record_key(batch_id, edition)
    async with answered(storage, key):
        stored = await read_record(storage, key, StoredRecord)
    if stored.batch_id != batch_id:
        raise BrokenObjectError(key, "it is the record of another batch")
    return stored


class BatchRecords:
    """Reads records, and remembers the last ones for a while."""

    def __init__(self, storage: Storage, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._storage = storage
        self._clock = clock
        #: With the times when they were read, the earliest first.
        self._known: OrderedDict[tuple[str, int], tuple[float, StoredRecord]] = OrderedDict()

    async def read(self, batch_id: str, edition: int) -> StoredRecord | None:
        """The record; where it is lost or damaged, as its commit has it.

        Then it lacks what was changed after the end, and the events. None without a commit.
        """
        now = self._clock()
        while self._known and next(iter(self._known.values()))[0] < now - _REMEMBERED_SECONDS:
            self._known.popitem(last=False)
        if (known := self._known.get((batch_id, edition))) is not None:
            return known[1]
        try:
            stored = await read_batch_record(self._storage, batch_id, edition)
        except (NotFoundError, BrokenObjectError) as error:
            reason = getattr(error, "reason", "it is missing")
            stored_or_none = await _of_commit(self._storage, batch_id)
            if stored_or_none is not None:
                key = record_key(batch_id, edition)
                log.error("batch_record.broken", batch_id=batch_id, key=key, reason=reason)  # noqa: TRY400  # the reason says it all
            return stored_or_none
        self._known[batch_id, edition] = (now, stored)
        while len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)
        return stored


def read_from(state: State, storage: Storage) -> None:
    """Let this process know of the batches that have left Redis."""
    state.read_records_by(BatchRecords(storage).read)


async def _of_commit(storage: Storage, batch_id: str) -> StoredRecord | None:
    for event in ENDS:
        with suppress(NotFoundError, BrokenObjectError):
            commit = await read_commit(storage, batch_id, event)
            target = TRANSITIONS[event].target
            end = {name: str(value) for name, value in shortened(commit.fields).items()}
            end |= {"status": target, f"{target}_at": str(commit.at_ms // 1000)}
            fields = {**commit.record, **end, "sequence": str(commit.sequence)}
            return StoredRecord(batch_id, fields)
    return None
