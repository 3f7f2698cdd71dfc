"""Writes the files of a table, as a writer's process makes them."""

import hashlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing, suppress

import msgspec
import structlog

from shared.dataset.child import Reader
from shared.dataset.frames import Done, Problem
from shared.errors import BatchyardError, TransientError
from shared.ledger.commits import Assembled
from shared.ledger.tables import SUCCESS, MadeTable, file_key, write_success
from shared.storage import LoginRefusedError, Storage, StorageRefusedError
from shared.table.frames import FileEnd, RowsJob, TableJob
from shared.table.writing import written

log = structlog.get_logger()

#: A table waits so long for a place that S3 fails for while it answers for others.
UNANSWERED_SECONDS = 120.0
#: A file of a table ends once it has so many.
FILE_BYTES = 256 * 1024 * 1024
Frames = AsyncGenerator[bytes | FileEnd | Problem | Done, None]


class LostTableError(BatchyardError):
    """The table cannot be made at all."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


async def frames_of(job: TableJob | RowsJob, read: Reader) -> Frames:
    """What the writer of the table says. Raises LostTableError, and what `read` raises."""
    async with aclosing(written(job, read)) as frames:
        async for said in frames:
            if isinstance(said, Problem):
                raise LostTableError(said)
            yield said


async def write_table(
    storage: Storage,
    table: MadeTable,
    frames: Frames,
    file_id_of: Callable[[int], str],
    *,
    about: Mapping[str, str],
    is_repeatable: bool = False,
) -> MadeTable:
    """Write the files into the table's folder, and then that it is whole.

    `file_id_of` names a file by its number, and `about` says in logs what the table is of. With
    `is_repeatable`, all attempts write the same files. Raises what `frames` raises but
    LostTableError, and what `storage` raises.
    """
    if not is_repeatable:
        # Nobody shall take half of this attempt for the whole of another one.
        await storage.remove([f"{table.prefix}{SUCCESS}"])
    files: list[Assembled] = []
    try:
        async for first in frames:
            if not isinstance(first, bytes):
                break
            file = TableFile(first, frames)
            stored = await storage.upload(file_key(table, len(files)), file.chunks())
            files.append(file.assembled(stored.key, stored.etag, file_id_of(len(files))))
    except LostTableError as lost:
        with suppress(TransientError, StorageRefusedError):
            await storage.remove([file.key for file in files])
        return lost_table(table, lost, about=about)
    table = msgspec.structs.replace(table, files=files)
    await write_success(storage, table)
    return table


def lost_table(table: MadeTable, lost: LostTableError, *, about: Mapping[str, str]) -> MadeTable:
    """The table, which says why there is none."""
    problem = lost.problem
    log.error("table.lost", **about, reason=problem.code)
    return msgspec.structs.replace(table, code=problem.code, message=problem.message)


def refused(table: MadeTable, destination: str, error: Exception) -> MadeTable:
    """The table, which says why it is not where it was wanted."""
    text = f"The table could not be written to {destination}, so it is here. {error}"
    return msgspec.structs.replace(table, code="destination_refused", message=text)


class TableFile:
    """One file of a table, as it comes."""

    def __init__(self, first: bytes, frames: Frames) -> None:
        self._first = first
        self._frames = frames
        self.digest = hashlib.sha256()
        self.rows = self.size = 0

    async def chunks(self) -> AsyncIterator[bytes]:
        """Its bytes; `rows` counts them from then on."""
        said: bytes | FileEnd | Problem | Done = self._first
        while isinstance(said, bytes):
            self.digest.update(said)
            self.size += len(said)
            yield said
            said = await anext(self._frames)
        if isinstance(said, FileEnd):
            self.rows = said.rows

    def assembled(self, key: str, etag: str, file_id: str) -> Assembled:
        """What was written of it."""
        digest = self.digest.hexdigest()
        return Assembled(key, etag, self.size, digest, self.rows, file_id)


async def first_bytes(frames: Frames) -> bytes:
    """The beginning of the next file."""
    said = await anext(frames)
    assert isinstance(said, bytes)  # noqa: S101  # the same frames have been read before
    return said


async def drained(file: TableFile) -> None:
    """Read the rest of the file."""
    async for _ in file.chunks():
        pass


class Patience:
    """How long tables wait for places of tenants."""

    def __init__(self, storage: Storage, *, seconds: float) -> None:
        """`storage` is that of the fleet."""
        self._storage = storage
        self._seconds = seconds
        #: Since when S3 fails for the place of a table, on the monotonic clock.
        self._unanswered: dict[str, float] = {}

    async def is_worth_it(self, about: str, error: Exception) -> bool:
        """Whether S3 has failed for the place alone, and only for a short time.

        Raises TransientError if S3 is away.
        """
        if not isinstance(error, TransientError):
            return False
        await self._storage.check_reads()
        if isinstance(error, LoginRefusedError):
            return False
        now = time.monotonic()
        return now < self._unanswered.setdefault(about, now) + self._seconds

    def forget(self, about: str) -> None:
        """Its table is done."""
        self._unanswered.pop(about, None)
