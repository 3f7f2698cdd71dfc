"""Restores files: each object under `files/` that has a record beside it, unless it was deleted."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence

from cli.rebuild.damage import Damage
from cli.rebuild.report import Report
from shared.errors import BrokenObjectError, NotFoundError
from shared.ledger.file_records import read_file
from shared.ledger.records import answered, encoded
from shared.settings import THIRTY_DAYS
from shared.state import FileRecord, State
from shared.storage import Listed, Storage

FILES, DELETED = "files/", "deleted/"
_RECORDS_AT_ONCE = 100
#: Pages of a listing whose files are made while the next one is read.
_PAGES_AT_ONCE = 3
#: Files younger than this may still be on their way into Redis.
_YOUNG_SECONDS = 60


class FileRestore:
    """Makes the files in Redis match S3."""

    def __init__(self, state: State, storage: Storage, report: Report) -> None:
        self._state = state
        self._storage = storage
        self._report = report
        self._damage = Damage(storage, report)

    async def run(self) -> None:
        """Make the files that are missing, and delete those that S3 no longer has."""
        began = time.time()
        limiter = asyncio.Semaphore(_PAGES_AT_ONCE)
        for tenant in await self._storage.folders(FILES):
            async with asyncio.TaskGroup() as making:
                async for records, orphans in self._pages(tenant):
                    await limiter.acquire()
                    task = making.create_task(self._make(records))
                    task.add_done_callback(lambda _: limiter.release())
                    await self._state.restore.orphans([(_file_id(key), key) for key in orphans])
                    self._report.counts["objects_orphaned"] += len(orphans)
                    self._report.progress("files", 0.5)
        async for files in self._state.rebuild_notes.files_without_note():
            for file in files:
                # It was deleted after the last state that Redis knows.
                if file.created_at < began - _YOUNG_SECONDS:
                    await self._delete(file.tenant, file.id)
        self._report.progress("files", 1.0)

    async def delete_deleted(self) -> None:
        """Delete again what clients had deleted: batches bring their files back."""
        async for page in self._storage.pages(DELETED):
            for listed in page:
                _, tenant, file_id = listed.key.split("/", 2)
                await self._delete(tenant, file_id)

    async def count(self) -> None:
        """Count the files that `run` would make, and change nothing."""
        for tenant in await self._storage.folders(FILES):
            async for records, _ in self._pages(tenant):
                ids = [_file_id(one.key) for one in records]
                known = await self._state.restore.known_files(ids)
                self._report.counts["files_made"] += known.count(False)

    async def _make(self, objects: Sequence[Listed]) -> None:
        records = [one.key for one in objects]
        file_ids = [_file_id(key) for key in records]
        await self._state.rebuild_notes.add_files(file_ids)
        known = await self._state.restore.known_files(file_ids)
        missing = [one for one, is_known in zip(objects, known, strict=True) if not is_known]
        for first in range(0, len(missing), _RECORDS_AT_ONCE):
            some = missing[first : first + _RECORDS_AT_ONCE]
            files = await asyncio.gather(*map(self._read, some))
            made = await self._state.restore.files([file for file in files if file is not None])
            # Not in one statement with the await: other pages add to the counts during it.
            self._report.counts["files_made"] += made

    async def _read(self, found: Listed) -> FileRecord | None:
        """The file with this object; None if it was deleted since the listing."""
        key = f"{found.key}.json"
        try:
            async with answered(self._storage, key):
                file = await read_file(self._storage, found.key)
        except NotFoundError:
            return None
        except BrokenObjectError as error:
            file = _file_again(found, self._storage.bucket)
            outcome = "its file is kept for 30 days, without its name"
            await self._damage.keep_copy(error, outcome)
            await self._storage.put(key, encoded(file.to_fields()))
        if (file.etag, file.bytes) != (found.etag, found.size):
            other = BrokenObjectError(found.key, "it is not the object that was uploaded")
            self._damage.note(other, "it stays; who reads it gets an error")
        return file

    async def _delete(self, tenant: str, file_id: str) -> None:
        gone = await self._state.restore.delete_file(tenant, file_id)
        self._report.counts["files_deleted"] += gone

    async def _pages(self, tenant: str) -> AsyncIterator[tuple[list[Listed], list[str]]]:
        """Objects with a record beside them, and the keys of objects without one."""
        last: Listed | None = None
        async for page in self._storage.pages(f"{FILES}{tenant}/"):
            files: list[Listed] = []
            orphans: list[str] = []
            for listed in page:
                if last is not None and listed.key == f"{last.key}.json":
                    files.append(last)
                    last = None
                elif listed.key.endswith(".json"):
                    error = BrokenObjectError(listed.key.removesuffix(".json"), "it is missing")
                    self._damage.note(error, "its file is lost; the record stays")
                else:
                    orphans += [last.key] if last else []
                    last = listed
            yield files, orphans
        if last:
            yield [], [last.key]


def _file_again(found: Listed, bucket: str) -> FileRecord:
    """A file whose record is damaged, as far as its object says what it was."""
    _, tenant, file_id = found.key.split("/", 2)
    return FileRecord(
        id=file_id,
        tenant=tenant,
        bytes=found.size,
        created_at=int(found.modified_at),
        expires_at=int(found.modified_at) + THIRTY_DAYS,
        filename=f"{file_id}.jsonl",
        purpose="batch",
        bucket=bucket,
        key=found.key,
        etag=found.etag,
    )


def _file_id(key: str) -> str:
    return key.rpartition("/")[2]
