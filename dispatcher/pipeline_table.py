"""The table of an ending pipeline: made of its output file. Safe to repeat."""

from contextlib import aclosing, suppress

import msgspec
import structlog

from dispatcher.pipeline_files import PipelineFiles
from dispatcher.table_files import (
    FILE_BYTES,
    UNANSWERED_SECONDS,
    Frames,
    LostTableError,
    Patience,
    TableFile,
    drained,
    frames_of,
    lost_table,
    refused,
    write_table,
)
from shared import ids
from shared.errors import BrokenObjectError, NotFoundError, TransientError
from shared.ledger.commits import Assembled
from shared.ledger.pipelines import Ending
from shared.ledger.tables import MadeTable, read_success
from shared.state import FileRecord
from shared.storage import Storage, StorageRefusedError
from shared.submission.pipelines import Pipeline
from shared.table.frames import RowsJob
from shared.table.output import RowsTable

log = structlog.get_logger()


class PipelineTable:
    """Makes it. One whose place cannot be written becomes files of the tenant's."""

    def __init__(
        self, storage: Storage, files: PipelineFiles, *, file_bytes: int = FILE_BYTES
    ) -> None:
        """A file of a table ends once it has `file_bytes`."""
        self._storage = storage
        self._files = files
        self._file_bytes = file_bytes
        self._patience = Patience(storage, seconds=UNANSWERED_SECONDS)

    async def make(self, pipeline: Pipeline, status: Ending, output: FileRecord) -> MadeTable:
        """The table that the pipeline asked for, of this output file. Raises TransientError."""
        wanted = pipeline.stored.output
        assert wanted is not None  # noqa: S101  # only asked when there is one
        if wanted.destination is None:
            return await self._as_files(pipeline, wanted, output)
        try:
            table = await self._there(pipeline, wanted, wanted.destination, status, output)
        except (NotFoundError, StorageRefusedError, TransientError) as error:
            if await self._patience.is_worth_it(pipeline.id, error):
                raise
            log.warning("table.destination_refused", pipeline_id=pipeline.id, reason=str(error))
            table = await self._as_files(pipeline, wanted, output)
            if table.code is None:
                table = refused(table, wanted.destination, error)
        self._patience.forget(pipeline.id)
        return table

    async def _there(
        self,
        pipeline: Pipeline,
        wanted: RowsTable,
        destination: str,
        status: Ending,
        output: FileRecord,
    ) -> MadeTable:
        """The table in the tenant's own place; what has ended early is no whole one."""
        bucket, _, prefix = destination.removeprefix("s3://").partition("/")
        name = pipeline.id if status == "completed" else f"{pipeline.id}-{status}"
        table = self._empty(wanted, bucket, f"{prefix}{name}/")
        storage, about = self._storage.of_bucket(bucket), {"pipeline_id": pipeline.id}
        with suppress(NotFoundError, BrokenObjectError):
            # An earlier attempt was made of the same output.
            return await read_success(storage, table, lambda _: "")
        async with aclosing(self._frames(wanted, output)) as frames:
            return await write_table(
                storage, table, frames, lambda _: "", about=about, is_repeatable=True
            )

    async def _as_files(
        self, pipeline: Pipeline, wanted: RowsTable, output: FileRecord
    ) -> MadeTable:
        table, files = self._empty(wanted, self._storage.bucket, ""), list[Assembled]()
        try:
            async with aclosing(self._frames(wanted, output)) as frames:
                async for first in frames:
                    if not isinstance(first, bytes):
                        break
                    file = TableFile(first, frames)
                    files.append(await self._file(pipeline, wanted, f"table-{len(files)}", file))
        except LostTableError as lost:
            await self._files.remove([file.file_id for file in files])
            return lost_table(table, lost, about={"pipeline_id": pipeline.id})
        return msgspec.structs.replace(table, files=files)

    async def _file(
        self, pipeline: Pipeline, wanted: RowsTable, kind: str, file: TableFile
    ) -> Assembled:
        stored = await self._files.write(pipeline, kind, wanted.format, file.chunks())
        if stored is None:
            await drained(file)
        place = ("", "") if stored is None else (stored.key, stored.etag)
        return file.assembled(*place, ids.pipeline_file_id(pipeline.id, kind))

    async def _frames(self, wanted: RowsTable, output: FileRecord) -> Frames:
        job = RowsJob(wanted, [output.bytes], self._file_bytes)

        async def read(_: int, start: int, end: int) -> bytes:
            return await self._storage.get(output.key, start=start, end=end, etag=output.etag)

        async with aclosing(frames_of(job, read)) as frames:
            async for said in frames:
                yield said

    def _empty(self, wanted: RowsTable, bucket: str, prefix: str) -> MadeTable:
        return MadeTable(
            format=wanted.format,
            bucket=bucket,
            prefix=prefix,
            is_ours=not prefix,
            columns=[column.name for column in wanted.columns],
        )
