"""The end of a pipeline: its output and error file, and what is not kept. Safe to repeat."""

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Literal

import msgspec
import structlog

from dispatcher.pipeline_edge import EdgeLog
from dispatcher.pipeline_order import in_order
from shared import crash, ids
from shared.errors import BrokenObjectError, NotFoundError, TransientError
from shared.ledger.file_records import note_deletion, write_file
from shared.ledger.pipelines import (
    Ended,
    Ending,
    Sections,
    StepCount,
    edges_folder,
    ended_fields,
    ended_key,
)
from shared.ledger.records import encoded, read_record
from shared.pipeline.stepping import Failed
from shared.retention import DAY_SECONDS, RESERVED_SECONDS
from shared.state import FileRecord, State
from shared.storage import Storage
from shared.submission.pipelines import Pipeline

log = structlog.get_logger()

_failures = msgspec.json.Decoder(Failed)


class PipelineEnd:
    """Ends pipelines whose batches have all ended."""

    def __init__(self, state: State, storage: Storage, *, output_seconds: int) -> None:
        self._state = state
        self._storage = storage
        self._output_seconds = output_seconds

    async def finish(
        self,
        pipeline: Pipeline,
        status: Ending,
        edges: Sequence[EdgeLog],
        counts: dict[int, StepCount],
    ) -> None:
        """Write the files, then the end, and then let the record say so.

        Raises TransientError and BrokenObjectError.
        """
        output = await self._file(pipeline, "output", edges[-1:])
        error = await self._file(pipeline, "error", edges)
        crash.point("pipelines.files_written")
        await self._drop_results(pipeline)
        ended = Ended(
            status=status,
            at=int(time.time()),
            output_file_id=output,
            error_file_id=error,
            rows=edges[-1].rows,
            counts=counts,
        )
        if not await self._storage.create(ended_key(pipeline.id), encoded(ended)):
            ended = await read_record(self._storage, ended_key(pipeline.id), Ended)
        crash.point("pipelines.end_written")
        # The files have what is of use of them.
        await self._state.files.reserve(edges_folder(pipeline.id), seconds=DAY_SECONDS)
        stored = pipeline.stored
        await self._state.pipelines.write(
            stored.id, stored.tenant, stored.created_at, ended_fields(ended), ended_at=ended.at
        )
        log.info("pipeline.ended", pipeline_id=pipeline.id, status=ended.status, rows=ended.rows)

    async def _file(
        self, pipeline: Pipeline, kind: Literal["output", "error"], edges: Sequence[EdgeLog]
    ) -> str:
        """The id of the file, which is written unless it is there; empty if it has no line."""
        stored = pipeline.stored
        has_lines = any(
            edge.rows if kind == "output" else any(one.failed for one in edge.counts.values())
            for edge in edges
        )
        if not has_lines:
            return ""
        file_id = ids.pipeline_file_id(stored.id, kind)
        key = f"files/{stored.tenant}/{file_id}"
        if not await self._state.files.reserve(
            key, f"{key}.json", seconds=RESERVED_SECONDS, file_id=file_id
        ):
            return file_id
        lines = _output(edges) if kind == "output" else _errors(edges)
        seconds = stored.output_seconds or self._output_seconds
        file = FileRecord.stored(
            file_id,
            stored.tenant,
            await self._storage.upload(key, lines),
            bucket=self._storage.bucket,
            created_at=int(time.time()),
            seconds=seconds or None,
            filename=f"{stored.id}_{kind}.jsonl",
            purpose="batch_output",
        )
        await write_file(self._storage, file)
        # Its rows were let in, so its bytes are not refused.
        if not await self._state.files.keep(file):
            raise TransientError(f"{file_id} took longer than its reservation.")
        return file_id

    async def _drop_results(self, pipeline: Pipeline) -> None:
        """Delete the result files of calls that are not kept."""
        for call, batch in zip(
            pipeline.plan.calls, await self._state.batches.many(pipeline.batch_ids), strict=True
        ):
            if call.call.keep:
                continue
            for file in await self._state.files.many(batch.file_ids):
                await note_deletion(self._storage, file)
                with suppress(NotFoundError):
                    await self._state.files.delete(file.tenant, file.id)


async def _output(edges: Sequence[EdgeLog]) -> AsyncIterator[bytes]:
    """A line of JSON for each row that came through, in the order of the input."""
    for edge in edges:
        async for rows in in_order(edge):
            lines = [{"custom_id": one.id, **one.columns} for one in rows]
            yield b"".join(msgspec.json.encode(line) + b"\n" for line in lines)


async def _errors(edges: Sequence[EdgeLog]) -> AsyncIterator[bytes]:
    """A line of JSON for each row that ended before, with its stage and the reason."""
    for edge in edges:
        async for sections in _whole(edge):
            found = [_failures.decode(line) for line in sections.failed.split(b"\n") if line]
            lines = [
                {
                    "custom_id": one.id,
                    "stage": None if one.stage < 0 else one.stage,
                    "error": {"code": one.code, "message": one.message},
                }
                for one in found
            ]
            yield b"".join(msgspec.json.encode(line) + b"\n" for line in lines)


async def _whole(edge: EdgeLog) -> AsyncIterator[Sections]:
    """What its handovers have; one that is damaged has failed the pipeline, and is left out."""
    for number in range(edge.handovers):
        try:
            _, sections = await edge.sections(number)
        except BrokenObjectError as error:
            log.error("pipeline.broken", reason=str(error))  # noqa: TRY400  # the reason says it all
            continue
        yield sections
