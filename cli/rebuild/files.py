"""Restores files: each object under `files/` that has a record beside it, unless it was deleted."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence

import msgspec

from cli.rebuild.report import Report
from shared.state import FileRecord, State
from shared.storage import Storage

FILES, DELETED = "files/", "deleted/"
_RECORDS_AT_ONCE = 100
#: Pages of a listing whose files are made while the next one is read.
_PAGES_AT_ONCE = 3
#: Files younger than this may still be on their way into Redis.
_YOUNG_SECONDS = 60


class FileRestore:
    """Makes Redis's files follow from S3."""

    def __init__(self, state: State, storage: Storage, report: Report) -> None:
        self._state = state
        self._storage = storage
        self._report = report

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
                # It was deleted after the state that Redis has.
                if file.created_at < began - _YOUNG_SECONDS:
                    await self._delete(file.tenant, file.id)
        self._report.progress("files", 1.0)

    async def delete_deleted(self) -> None:
        """Delete again what clients had deleted: batches bring their files back."""
        async for page in self._storage.pages(DELETED):
            for listed in page:
                _, tenant, file_id = listed.key.split("/")
                await self._delete(tenant, file_id)

    async def count(self) -> None:
        """Count the files that `run` would make, and change nothing."""
        for tenant in await self._storage.folders(FILES):
            async for records, _ in self._pages(tenant):
                known = await self._state.restore.known_files([_file_id(key) for key in records])
                self._report.counts["files_made"] += known.count(False)

    async def _make(self, records: Sequence[str]) -> None:
        file_ids = [_file_id(key) for key in records]
        await self._state.rebuild_notes.add_files(file_ids)
        known = await self._state.restore.known_files(file_ids)
        missing = [key for key, is_known in zip(records, known, strict=True) if not is_known]
        for first in range(0, len(missing), _RECORDS_AT_ONCE):
            some = missing[first : first + _RECORDS_AT_ONCE]
            bodies = await asyncio.gather(*(self._storage.get(f"{key}.json") for key in some))
            fields = [msgspec.json.decode(body, type=dict[str, str | int]) for body in bodies]
            files = [FileRecord.from_fields(_texts(one)) for one in fields]
            made = await self._state.restore.files(files)
            # Not in one statement with the await: other pages count meanwhile.
            self._report.counts["files_made"] += made

    async def _delete(self, tenant: str, file_id: str) -> None:
        gone = await self._state.restore.delete_file(tenant, file_id)
        self._report.counts["files_deleted"] += gone

    async def _pages(self, tenant: str) -> AsyncIterator[tuple[list[str], list[str]]]:
        """Keys of objects with a record beside them, and of objects without one."""
        last = ""
        async for page in self._storage.pages(f"{FILES}{tenant}/"):
            records: list[str] = []
            orphans: list[str] = []
            for listed in page:
                if last and listed.key == f"{last}.json":
                    records.append(last)
                    last = ""
                elif not listed.key.endswith(".json"):
                    orphans += [last] if last else []
                    last = listed.key
            yield records, orphans
        if last:
            yield [], [last]


def _file_id(key: str) -> str:
    return key.rpartition("/")[2]


def _texts(fields: dict[str, str | int]) -> dict[str, str]:
    return {name: str(value) for name, value in fields.items()}
