"""The table of an ending batch: made of its result files, and whole before the batch has ended.

Every finaliser of a batch writes the same files under the same keys, and `_SUCCESS` last.
"""

from collections.abc import Collection
from contextlib import aclosing
from functools import partial

import msgspec
import structlog

from dispatcher.result_files import Results
from dispatcher.table_files import (
    FILE_BYTES,
    UNANSWERED_SECONDS,
    Frames,
    LostTableError,
    Patience,
    TableFile,
    drained,
    first_bytes,
    frames_of,
    refused,
    write_table,
)
from shared.dataset.frames import Problem
from shared.errors import BrokenObjectError, NotFoundError, TransientError
from shared.ledger.commits import Assembled
from shared.ledger.tables import (
    MadeTable,
    carried_key,
    table_file_id,
    unwritten_table,
    wanted_of,
)
from shared.lifecycle import Event
from shared.state import BatchRecord
from shared.storage import Storage, StorageRefusedError, Stored
from shared.table.frames import CARRIED, TableJob
from shared.table.output import WantedTable

log = structlog.get_logger()


class Tables:
    """Makes tables. One whose place cannot be written is written beside the results."""

    def __init__(
        self,
        storage: Storage,
        *,
        file_bytes: int = FILE_BYTES,
        unanswered_seconds: float = UNANSWERED_SECONDS,
    ) -> None:
        """A file of a table ends once it has `file_bytes`."""
        self._storage = storage
        self._file_bytes = file_bytes
        self._patience = Patience(storage, seconds=unanswered_seconds)

    async def make(self, record: BatchRecord, event: Event, results: Results) -> MadeTable | None:
        """The batch's table; None if it wants none, or has no rows.

        Raises NotFoundError if a result file is gone, and TransientError.
        """
        if "output" not in record.fields or not any(results):
            return None
        wanted, bucket = wanted_of(record.fields["output"]), self._storage.bucket
        ours = unwritten_table(record.id, event, wanted, bucket, is_ours=True)
        if wanted.destination is None:
            return await self._make(record, wanted, results, ours)
        theirs = unwritten_table(record.id, event, wanted, bucket, is_ours=False)
        try:
            table = await self._make(record, wanted, results, theirs)
        except (NotFoundError, StorageRefusedError, TransientError) as error:
            if await self._patience.is_worth_it(record.id, error):
                raise
            log.warning("table.destination_refused", batch_id=record.id, reason=str(error))
            table = await self._make(record, wanted, results, ours)
            if table.code is None:
                table = refused(table, wanted.destination, error)
        self._patience.forget(record.id)
        return table

    async def remake(
        self, record: BatchRecord, table: MadeTable, results: Results, damaged: Collection[str]
    ) -> list[Assembled]:
        """Write those files of a table again that have these keys, byte by byte as they were.

        Returns them. Raises BrokenObjectError if the batch's files do not give the same table.
        """
        wanted = wanted_of(record.fields["output"])
        bucket = self._storage.of_bucket(table.bucket)
        made: list[Assembled] = []
        try:
            await self._require_same(record, wanted, table, results)
            async with aclosing(self._frames(record, wanted, results)) as frames:
                for file in table.files:
                    again = TableFile(await first_bytes(frames), frames)
                    if file.key in damaged:
                        stored = await bucket.upload(file.key, again.chunks())
                        made.append(msgspec.structs.replace(file, etag=stored.etag))
                    else:
                        await drained(again)
        except LostTableError as lost:
            raise BrokenObjectError(table.prefix, lost.problem.message) from lost
        return made

    async def _require_same(
        self, record: BatchRecord, wanted: WantedTable, table: MadeTable, results: Results
    ) -> None:
        """Nothing is written before it is known that all of it will be as it was."""
        digests = []
        async with aclosing(self._frames(record, wanted, results)) as frames:
            async for first in frames:
                if not isinstance(first, bytes):
                    break
                file = TableFile(first, frames)
                await drained(file)
                digests.append(file.digest.hexdigest())
        if digests != [file.sha256 for file in table.files]:
            reason = "the batch's files do not give the same table any more"
            raise BrokenObjectError(table.prefix, reason)

    async def _make(
        self, record: BatchRecord, wanted: WantedTable, results: Results, table: MadeTable
    ) -> MadeTable:
        async with aclosing(self._frames(record, wanted, results)) as frames:
            return await write_table(
                self._storage.of_bucket(table.bucket),
                table,
                frames,
                partial(table_file_id, record.id),
                about={"batch_id": record.id},
            )

    async def _frames(self, record: BatchRecord, wanted: WantedTable, results: Results) -> Frames:
        """What the writer of the batch's table says. Raises LostTableError."""
        sources = [
            None if file is None else Stored(file.key, file.etag, file.size) for file in results
        ]
        carried = None
        if any(column.carried is not None for column in wanted.columns):
            carried = await self._carried(record)
        sources.append(carried)
        sizes = [0 if source is None else source.size for source in sources]

        async def read(number: int, start: int, end: int) -> bytes:
            source = sources[number]
            if source is None:
                return b""
            try:
                return await self._storage.get(source.key, start=start, end=end, etag=source.etag)
            except NotFoundError as error:
                raise (_carried_lost(error) if number == CARRIED else error) from error

        job = TableJob(wanted, sizes, self._file_bytes)
        async with aclosing(frames_of(job, read)) as frames:
            async for said in frames:
                yield said

    async def _carried(self, record: BatchRecord) -> Stored:
        try:
            return await self._storage.stat(carried_key(record.id))
        except NotFoundError as error:
            raise _carried_lost(error) from error


def _carried_lost(error: NotFoundError) -> LostTableError:
    text = (
        f"What the input's rows carry along is lost: {error} All results are in the output and "
        "error files."
    )
    return LostTableError(Problem("carried_lost", text, "input.carry"))
