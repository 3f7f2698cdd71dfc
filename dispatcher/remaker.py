"""Makes damaged result files of ended batches again from their parts, and tables from those."""

import hashlib
import json
from collections.abc import AsyncIterator, Iterable
from functools import partial

import msgspec
import structlog

from dispatcher.result_files import Results
from dispatcher.result_lines import InputLostError, ResultLines
from dispatcher.row_check import IncompleteError, RowCheck
from dispatcher.tables import Tables
from dispatcher.unrun_rows import CLOSING_REASONS
from shared.errors import BrokenObjectError, NotFoundError
from shared.ledger.commits import Assembled, Commit, read_commit
from shared.ledger.quarantine import keep_copy
from shared.ledger.tables import (
    read_success,
    table_file_id,
    table_prefix,
    unwritten_table,
    wanted_of,
)
from shared.lifecycle import TRANSITIONS, Event
from shared.state import BatchRecord, State
from shared.storage import Storage
from shared.tasks import beside

log = structlog.get_logger()

#: What begins the outcome of a wish that came true.
MADE = "made"
_EVENTS = (Event.OUTPUT_COMMITTED, Event.EXPIRY_COMMITTED, Event.CANCEL_COMMITTED)


class Remaker:
    """Obeys the wishes that `State.remakes` has."""

    def __init__(self, state: State, storage: Storage, tables: Tables | None = None) -> None:
        self._state = state
        self._storage = storage
        self._tables = tables or Tables(storage)

    async def remake(self, batch_id: str) -> None:
        """Make what is damaged of the batch's files again, byte by byte as it was. Safe to repeat.

        A file whose parts are gone or damaged as well stays as it is. Raises TransientError.
        """
        try:
            outcome = await self._remake(await self._state.batches.get(batch_id))
        except (NotFoundError, BrokenObjectError, IncompleteError, InputLostError) as error:
            outcome = f"not possible: {error}"
        await self._state.remakes.settle(batch_id, outcome)
        log.info("results.remade", batch_id=batch_id, outcome=outcome)

    async def _remake(self, record: BatchRecord) -> str:
        event = next((one for one in _EVENTS if TRANSITIONS[one].target is record.status), None)
        if event is None:
            return f"not possible: a batch that is {record.status} has no result files"
        commit = await read_commit(self._storage, record.id, event)
        made = [
            kind
            for kind, file in (("output", commit.output), ("error", commit.error))
            if file is not None and await self._remake_file(commit, kind, file)
        ]
        again = [f"{' and '.join(made)} file"] if made else []
        if await self._remake_table(commit, event):
            again.append("table")
        if not again:
            return f"{MADE} nothing: its files are as they were written"
        return f"{MADE} again: its {', and its '.join(again)}"

    async def _remake_file(self, commit: Commit, kind: str, file: Assembled) -> bool:
        """Returns False if the file is whole. Raises BrokenObjectError if it stays damaged."""
        if await self._is_whole(self._storage, file):
            return False
        if file.key.startswith(f"batches/{commit.batch_id}/parts/"):
            raise BrokenObjectError(file.key, "it was the batch's only part, so there is no other")
        await self._require_same(file, self._lines(commit, kind))
        await keep_copy(self._storage, file.key)
        stored = await self._storage.upload(file.key, self._lines(commit, kind))
        if stored.etag != file.etag:
            await self._state.files.set_etag(file.file_id, stored.etag)
        return True

    async def _remake_table(self, commit: Commit, event: Event) -> bool:
        """Returns False if the table is whole, or there is none. Its result files are whole.

        Raises BrokenObjectError if it stays damaged.
        """
        told = json.loads(str(commit.fields.get("table") or "{}"))
        if not (url := told.get("url")):
            return False
        bucket, _, prefix = url.removeprefix("s3://").partition("/")
        storage = self._storage.of_bucket(bucket)
        record = BatchRecord(commit.record)
        is_ours = (bucket, prefix) == (self._storage.bucket, table_prefix(record.id, event))
        table = unwritten_table(
            record.id,
            event,
            wanted_of(record.fields["output"]),
            self._storage.bucket,
            is_ours=is_ours,
        )
        try:
            table = await read_success(storage, table, partial(table_file_id, record.id))
        except (NotFoundError, BrokenObjectError):
            made = await self._tables.make(record, event, await self._results(commit))
            if made is None or json.loads(made.to_field()) != told:
                raise BrokenObjectError(prefix, "its files do not give the same table") from None
            await self._note(made.files)
            return True
        damaged = [file.key for file in table.files if not await self._is_whole(storage, file)]
        if not damaged:
            return False
        for key in damaged if table.is_ours else ():
            await keep_copy(self._storage, key)
        results = await self._results(commit)
        await self._note(await self._tables.remake(record, table, results, damaged))
        return True

    async def _note(self, files: Iterable[Assembled]) -> None:
        for file in files:
            await self._state.files.set_etag(file.file_id, file.etag)

    async def _results(self, commit: Commit) -> Results:
        return Results(await self._as_it_is(commit.output), await self._as_it_is(commit.error))

    async def _as_it_is(self, file: Assembled | None) -> Assembled | None:
        """The result file with its ETag now: it may have been made again."""
        if file is None:
            return None
        return msgspec.structs.replace(file, etag=(await self._storage.stat(file.key)).etag)

    async def _is_whole(self, storage: Storage, file: Assembled) -> bool:
        try:
            digest = await _digest(storage.stream(file.key))
        except NotFoundError:
            return False
        return digest == file.sha256

    async def _require_same(self, file: Assembled, chunks: AsyncIterator[bytes]) -> None:
        if await _digest(chunks) != file.sha256:
            raise BrokenObjectError(file.key, "its parts do not give the same bytes any more")

    async def _lines(self, commit: Commit, kind: str) -> AsyncIterator[bytes]:
        """The file's chunks, as the finaliser has written them."""
        record = BatchRecord(commit.record)
        check = RowCheck(record.number("total"))
        lines = ResultLines(self._state, self._storage, record, check)
        async for chunk in lines.output():
            if kind == "output":
                yield chunk
        if kind == "error" and commit.error is not None:
            is_early = commit.event != Event.OUTPUT_COMMITTED
            closing = CLOSING_REASONS[record.status] if is_early else None
            has_names = "without-names" not in commit.error.key
            async for chunk in lines.errors(closing, has_names=has_names):
                yield chunk


async def _digest(chunks: AsyncIterator[bytes]) -> str:
    digest = hashlib.sha256()
    async for chunk in chunks:
        await beside(digest.update, chunk)
    return digest.hexdigest()
