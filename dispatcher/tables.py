"""The table of an ending batch: made of its result files, and whole before the batch has ended.

Every finaliser of a batch writes the same files under the same keys, and `_SUCCESS` last.
"""

import hashlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Collection
from contextlib import aclosing, suppress
from typing import NamedTuple

import msgspec
import structlog

from dispatcher.result_files import Results
from shared import ids
from shared.dataset.frames import Done, Problem
from shared.errors import BatchyardError, BrokenObjectError, NotFoundError, TransientError
from shared.ledger.commits import Assembled
from shared.ledger.tables import (
    SUCCESS,
    MadeTable,
    carried_key,
    place_of,
    table_prefix,
    wanted_of,
    write_success,
)
from shared.lifecycle import Event
from shared.state import BatchRecord
from shared.storage import LoginRefusedError, Storage, StorageRefusedError, Stored
from shared.table.frames import CARRIED, FileEnd, TableJob
from shared.table.output import WantedTable
from shared.table.writing import written

log = structlog.get_logger()

#: A table waits so long for a place that S3 fails for while it answers for others.
_UNANSWERED_SECONDS = 120.0
_FILE_BYTES = 256 * 1024 * 1024
_Frames = AsyncGenerator[bytes | FileEnd | Problem | Done, None]


class _LostError(BatchyardError):
    """The table cannot be made at all."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


class _Folder(NamedTuple):
    """Where a table is written."""

    storage: Storage
    prefix: str
    is_ours: bool


class Tables:
    """Makes tables. One whose place cannot be written is written beside the results."""

    def __init__(
        self,
        storage: Storage,
        *,
        file_bytes: int = _FILE_BYTES,
        unanswered_seconds: float = _UNANSWERED_SECONDS,
    ) -> None:
        """A file of a table ends once it has `file_bytes`."""
        self._storage = storage
        self._file_bytes = file_bytes
        self._unanswered_seconds = unanswered_seconds
        #: Since when S3 fails for the places of tables, by batch, on the monotonic clock.
        self._unanswered: dict[str, float] = {}

    async def make(self, record: BatchRecord, event: Event, results: Results) -> MadeTable | None:
        """The batch's table; None if it wants none, or has no rows.

        Raises NotFoundError if a result file is gone, and TransientError.
        """
        if "output" not in record.fields or not any(results):
            return None
        wanted = wanted_of(record.fields["output"])
        ours = _Folder(self._storage, table_prefix(record.id, event), is_ours=True)
        if wanted.destination is None:
            return await self._make(record, wanted, results, ours)
        bucket, prefix = place_of(record.id, event, wanted.destination)
        folder = _Folder(self._storage.of_bucket(bucket), prefix, is_ours=False)
        try:
            table = await self._make(record, wanted, results, folder)
        except (NotFoundError, StorageRefusedError, TransientError) as error:
            if isinstance(error, TransientError) and await self._may_answer_later(record, error):
                raise
            log.warning("table.destination_refused", batch_id=record.id, reason=str(error))
            table = await self._make(record, wanted, results, ours)
            if table.code is None:
                text = (
                    f"The table could not be written to {wanted.destination}, so it is here. "
                    f"{error}"
                )
                table = msgspec.structs.replace(table, code="destination_refused", message=text)
        self._unanswered.pop(record.id, None)
        return table

    async def remake(
        self, record: BatchRecord, table: MadeTable, results: Results, damaged: Collection[str]
    ) -> list[Assembled]:
        """Write those files of a table again that have these keys, byte by byte as they were.

        Returns them. Raises BrokenObjectError if the batch's files do not give the same table.
        """
        wanted = wanted_of(record.fields["output"])
        bucket = self._storage if table.is_ours else self._storage.of_bucket(table.bucket)
        made: list[Assembled] = []
        try:
            await self._require_same(record, wanted, table, results)
            async with aclosing(self._frames(record, wanted, results)) as frames:
                for file in table.files:
                    again = _File(await _first_bytes(frames), frames)
                    if file.key in damaged:
                        stored = await bucket.upload(file.key, again.chunks())
                        made.append(msgspec.structs.replace(file, etag=stored.etag))
                    else:
                        await _drained(again)
        except _LostError as lost:
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
                file = _File(first, frames)
                await _drained(file)
                digests.append(file.digest.hexdigest())
        if digests != [file.sha256 for file in table.files]:
            reason = "the batch's files do not give the same table any more"
            raise BrokenObjectError(table.prefix, reason)

    async def _may_answer_later(self, record: BatchRecord, error: TransientError) -> bool:
        """Whether S3 is away, or has failed for the place alone and only for a short time."""
        await self._storage.check_reads()
        if isinstance(error, LoginRefusedError):
            return False
        now = time.monotonic()
        return now < self._unanswered.setdefault(record.id, now) + self._unanswered_seconds

    async def _make(
        self, record: BatchRecord, wanted: WantedTable, results: Results, folder: _Folder
    ) -> MadeTable:
        table = MadeTable(
            format=wanted.format,
            bucket=folder.storage.bucket,
            prefix=folder.prefix,
            is_ours=folder.is_ours,
            columns=[column.name for column in wanted.columns],
        )
        # Nobody shall take half of this attempt for the whole of another one.
        await folder.storage.remove([f"{folder.prefix}{SUCCESS}"])
        files: list[Assembled] = []
        try:
            async with aclosing(self._frames(record, wanted, results)) as frames:
                async for file in self._files(record, wanted, folder, frames):
                    files.append(file)  # noqa: PERF401  # what was written before a failure counts
        except _LostError as lost:
            with suppress(TransientError, StorageRefusedError):
                await folder.storage.remove([file.key for file in files])
            log.error("table.lost", batch_id=record.id, reason=lost.problem.code)  # noqa: TRY400  # the reason says it all
            problem = lost.problem
            return msgspec.structs.replace(table, code=problem.code, message=problem.message)
        table = msgspec.structs.replace(table, files=files)
        await write_success(folder.storage, table)
        return table

    async def _frames(self, record: BatchRecord, wanted: WantedTable, results: Results) -> _Frames:
        """What the writer of the batch's table says. Raises _LostError."""
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

        async with aclosing(written(TableJob(wanted, sizes, self._file_bytes), read)) as frames:
            async for said in frames:
                if isinstance(said, Problem):
                    raise _LostError(said)
                yield said

    async def _carried(self, record: BatchRecord) -> Stored:
        try:
            return await self._storage.stat(carried_key(record.id))
        except NotFoundError as error:
            raise _carried_lost(error) from error

    async def _files(
        self, record: BatchRecord, wanted: WantedTable, folder: _Folder, frames: _Frames
    ) -> AsyncIterator[Assembled]:
        """The table's files as they are written."""
        number = 0
        async for first in frames:
            if not isinstance(first, bytes):
                return
            file = _File(first, frames)
            key = f"{folder.prefix}part-{number:05d}.{wanted.format}"
            stored = await folder.storage.upload(key, file.chunks())
            yield Assembled(
                key=stored.key,
                etag=stored.etag,
                size=stored.size,
                sha256=file.digest.hexdigest(),
                rows=file.rows,
                file_id=ids.output_file_id(record.id, f"table-{number}"),
            )
            number += 1


class _File:
    """One file of a table, as it comes."""

    def __init__(self, first: bytes, frames: _Frames) -> None:
        self._first = first
        self._frames = frames
        self.digest = hashlib.sha256()
        self.rows = 0

    async def chunks(self) -> AsyncIterator[bytes]:
        """Its bytes; `rows` counts them from then on."""
        said: bytes | FileEnd | Problem | Done = self._first
        while isinstance(said, bytes):
            self.digest.update(said)
            yield said
            said = await anext(self._frames)
        if isinstance(said, FileEnd):
            self.rows = said.rows


async def _first_bytes(frames: _Frames) -> bytes:
    """The beginning of the next file."""
    said = await anext(frames)
    assert isinstance(said, bytes)  # noqa: S101  # the same frames have been read before
    return said


async def _drained(file: _File) -> None:
    async for _ in file.chunks():
        pass


def _carried_lost(error: NotFoundError) -> _LostError:
    text = (
        f"What the input's rows carry along is lost: {error} All results are in the output and "
        "error files."
    )
    return _LostError(Problem("carried_lost", text, "input.carry"))
