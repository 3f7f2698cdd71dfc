"""Files of the tenant's that a pipeline makes at its end. Safe to repeat."""

import time
from collections.abc import AsyncIterator
from contextlib import suppress

from shared import ids
from shared.errors import NotFoundError, TransientError
from shared.ledger.file_records import note_deletion, write_file
from shared.retention import RESERVED_SECONDS
from shared.state import FileRecord, State
from shared.storage import Storage
from shared.submission.pipelines import Pipeline


class PipelineFiles:
    """Writes them."""

    def __init__(self, state: State, storage: Storage, *, output_seconds: int) -> None:
        """Files are kept for `output_seconds` where the pipeline says nothing; 0 for ever."""
        self._state = state
        self._storage = storage
        self._output_seconds = output_seconds

    async def write(
        self, pipeline: Pipeline, kind: str, suffix: str, chunks: AsyncIterator[bytes]
    ) -> FileRecord | None:
        """Write the pipeline's file of this kind; None if it was written before.

        Raises TransientError.
        """
        stored = pipeline.stored
        file_id = ids.pipeline_file_id(stored.id, kind)
        key = f"files/{stored.tenant}/{file_id}"
        if not await self._state.files.reserve(
            key, f"{key}.json", seconds=RESERVED_SECONDS, file_id=file_id
        ):
            return None
        seconds = stored.output_seconds or self._output_seconds
        file = FileRecord.stored(
            file_id,
            stored.tenant,
            await self._storage.upload(key, chunks),
            bucket=self._storage.bucket,
            created_at=int(time.time()),
            seconds=seconds or None,
            filename=f"{stored.id}_{kind}.{suffix}",
            purpose="batch_output",
        )
        await write_file(self._storage, file)
        # Its rows were let in, so its bytes are not refused.
        if not await self._state.files.keep(file):
            raise TransientError(f"{file_id} took longer than its reservation.")
        return file

    async def remove(self, file_ids: list[str]) -> None:
        """Delete those of these files that there are."""
        for file in await self._state.files.many(file_ids):
            await note_deletion(self._storage, file)
            with suppress(NotFoundError):
                await self._state.files.delete(file.tenant, file.id)
