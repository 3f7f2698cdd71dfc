"""The end of a pipeline: its output and error file, and what is not kept. Safe to repeat."""

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Literal

import msgspec
import structlog

from dispatcher.pipeline_edge import EdgeLog, counts_of
from dispatcher.pipeline_files import PipelineFiles
from dispatcher.pipeline_order import in_order
from dispatcher.pipeline_table import PipelineTable
from shared import crash, ids
from shared.errors import BrokenObjectError, NotFoundError
from shared.ledger.pipelines import (
    Ended,
    Ending,
    Sections,
    decided,
    edges_folder,
    ended_fields,
    ended_key,
)
from shared.ledger.records import encoded, read_record
from shared.pipeline.shapes import to_shape
from shared.pipeline.stepping import Failed
from shared.retention import DAY_SECONDS
from shared.state import PipelineRecord, State
from shared.storage import Storage
from shared.submission.pipelines import Pipeline

log = structlog.get_logger()

_failures = msgspec.json.Decoder(Failed)


class PipelineEnd:
    """Ends pipelines whose batches have all ended."""

    def __init__(self, state: State, storage: Storage, *, output_seconds: int) -> None:
        self._state = state
        self._storage = storage
        self._files = PipelineFiles(state, storage, output_seconds=output_seconds)
        self._tables = PipelineTable(storage, self._files)

    async def finish(
        self,
        pipeline: Pipeline,
        status: Ending,
        edges: Sequence[EdgeLog],
        record: PipelineRecord,
    ) -> None:
        """Write the files, then the end, and then let the record and its event say so.

        Raises TransientError and BrokenObjectError.
        """
        status = await decided(self._storage, pipeline.id, status)
        crash.point("pipelines.decided")
        output = await self._file(pipeline, "output", edges[-1:])
        error = await self._file(pipeline, "error", edges)
        table = await self._table(pipeline, status, output)
        crash.point("pipelines.files_written")
        await self._drop_results(pipeline)
        ended = Ended(
            status=status,
            at=int(time.time()),
            output_file_id=output,
            error_file_id=error,
            table=table,
            read=edges[0].read,
            rows=edges[-1].rows,
            counts=counts_of(edges),
        )
        ended = msgspec.structs.replace(ended, told=await self._told(pipeline, record, ended))
        if not await self._storage.create(ended_key(pipeline.id), encoded(ended)):
            ended = await read_record(self._storage, ended_key(pipeline.id), Ended)
        crash.point("pipelines.end_written")
        # The files have what is of use of them.
        await self._state.files.reserve(edges_folder(pipeline.id), seconds=DAY_SECONDS)
        stored = pipeline.stored
        await self._state.pipelines.write(
            stored.id,
            stored.tenant,
            stored.created_at,
            ended_fields(ended),
            ended_at=ended.at,
            told=ended.told,
        )
        crash.point("pipelines.ended")
        log.info("pipeline.ended", pipeline_id=pipeline.id, status=ended.status, rows=ended.rows)

    async def _told(self, pipeline: Pipeline, record: PipelineRecord, ended: Ended) -> str:
        """The pipeline as its last event and HTTP show it, as JSON."""
        fields = {**record.fields, **ended_fields(ended), "ended_at": ended.at}
        batch_ids = {call.stage: pipeline.batch_id(call) for call in pipeline.plan.calls}
        found = {one.id: one for one in await self._state.batches.many(pipeline.batch_ids)}
        shown = to_shape(
            pipeline.id,
            {name: str(text) for name, text in fields.items()},
            pipeline.declaration,
            {stage: found[one].to_openai() for stage, one in batch_ids.items() if one in found},
            batch_ids,
        )
        return shown.model_dump_json()

    async def _file(
        self, pipeline: Pipeline, kind: Literal["output", "error"], edges: Sequence[EdgeLog]
    ) -> str:
        """The id of the file, which is written unless it is there; empty if it has no line."""
        has_lines = any(
            edge.rows if kind == "output" else any(one.failed for one in edge.counts.values())
            for edge in edges
        )
        if not has_lines:
            return ""
        lines = _output(edges) if kind == "output" else _errors(edges)
        await self._files.write(pipeline, kind, "jsonl", lines)
        return ids.pipeline_file_id(pipeline.id, kind)

    async def _table(self, pipeline: Pipeline, status: Ending, output: str) -> str:
        """The table as the record has it; empty without one."""
        if pipeline.stored.output is None or not output:
            return ""
        for file in await self._state.files.many([output]):
            with suppress(NotFoundError):
                return (await self._tables.make(pipeline, status, file)).to_field()
        # Its owner has deleted the output since it was written.
        log.warning("table.output_gone", pipeline_id=pipeline.id)
        return ""

    async def _drop_results(self, pipeline: Pipeline) -> None:
        """Delete the result files of calls that are not kept."""
        for call, batch in zip(
            pipeline.plan.calls, await self._state.batches.many(pipeline.batch_ids), strict=True
        ):
            if call.call.keep:
                continue
            await self._files.remove(batch.file_ids)


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
