"""One pipeline at work: what its calls have answered goes on from stage to stage."""

import time
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress

import msgspec
import structlog

from dispatcher.pipeline_edge import EdgeLog, Work, counts_of
from dispatcher.pipeline_end import PipelineEnd
from dispatcher.pipeline_input import UnreadableInputError, input_rows
from dispatcher.pipeline_tables import PipelineTables
from dispatcher.pipeline_tokenizers import PipelineTokenizers
from shared import crash
from shared.catalog import Catalog
from shared.errors import BrokenObjectError, ConflictError, InvalidInputError, NotFoundError
from shared.input.request_lines import custom_id_of, split
from shared.ledger.parts import drop_part
from shared.ledger.pipelines import Closing, Ending
from shared.lifecycle import FINAL, Status
from shared.pipeline.answers import Answers
from shared.pipeline.stepping import Failed, Item
from shared.pipeline.steps import StepsError
from shared.slices import Part
from shared.state import BatchRecord, PipelineRecord, State
from shared.storage import Storage
from shared.submission.additions import Additions, Answered, RoomError, close
from shared.submission.pipelines import (
    Pipeline,
    cancel_batches,
    close_pipeline,
    ensure_batches,
)

log = structlog.get_logger()

#: What one handover is made of, at most.
_MAX_ROWS, _MAX_BYTES, _MAX_SLICES = 2000, 4 * 1024 * 1024, 500


class PipelineRun:
    """A pipeline that this dispatcher leads. `load` makes it."""

    def __init__(
        self,
        state: State,
        storage: Storage,
        catalog: Catalog,
        additions: Additions,
        end: PipelineEnd,
        pipeline: Pipeline,
    ) -> None:
        self._state = state
        self._storage = storage
        self._catalog = catalog
        self._end = end
        self._pipeline = pipeline
        self._answers = [Answers(one.stage, one.call) for one in pipeline.plan.calls]
        self._additions = additions
        self._tables = PipelineTables(storage, pipeline.stored.joined)
        self._tokenizers = PipelineTokenizers(storage, pipeline.id, pipeline.stored.tokenizers)
        #: What lies between the calls, in order.
        self.edges = self._unread_edges()
        self._input: AsyncGenerator[Item | Failed, None] | None = None
        self._written: dict[str, str | int] = {}
        #: Why what was handed on cannot be read.
        self._damage: Closing | None = None

    def _unread_edges(self) -> list[EdgeLog]:
        return [
            EdgeLog(
                self._storage,
                self._pipeline.id,
                number,
                edge,
                additions=self._additions,
                tables=self._tables,
                tokenizers=self._tokenizers,
            )
            for number, edge in enumerate(self._pipeline.plan.edges)
        ]

    async def load(self) -> None:
        """Read what was handed on so far. Damage ends the pipeline with the next step."""
        self.edges = self._unread_edges()
        for edge in self.edges:
            try:
                await edge.load()
            except BrokenObjectError as error:
                self._damage = self._damaged(error)

    @property
    def holds_much(self) -> bool:
        """Whether it keeps a process for its input, or tables in memory."""
        return self._input is not None or self._tables.are_held

    async def close(self) -> None:
        """Stop reading the input, and forget the tables. What comes next reads them again."""
        self._tables.let_go()
        if self._input is not None:
            reading, self._input = self._input, None
            await reading.aclose()

    async def step(self, record: PipelineRecord) -> bool:
        """Do what there is to do, once. Returns whether there may be more at once."""
        batches = await ensure_batches(self._state, self._storage, self._catalog, self._pipeline)
        statuses = [one.status for one in batches]
        if all(status in FINAL for status in statuses):
            await self._finish(record, statuses)
            return False
        if "cancelling_at" in record.fields or "failing_at" in record.fields:
            await cancel_batches(self._state, self._storage, self._pipeline)
            return False
        if (closing := self._damage or self._closing(batches)) is not None:
            await self._close(closing)
            return False
        try:
            return await self._hand_on(batches)
        except BrokenObjectError as error:
            await self._close(self._damaged(error))
        except UnreadableInputError as error:
            await self._close(Closing(int(time.time()), error.code, str(error)))
        except StepsError as error:
            await self._close(Closing(int(time.time()), error.problem.code, str(error)))
        except InvalidInputError as error:
            await self._close(Closing(int(time.time()), error.code or "too_large", str(error)))
        return False

    def _damaged(self, error: BrokenObjectError) -> Closing:
        log.error("pipeline.broken", pipeline_id=self._pipeline.id, reason=str(error))
        return Closing(int(time.time()), "handover_lost", str(error))

    def _closing(self, batches: Sequence[BatchRecord]) -> Closing | None:
        """Why the pipeline has to end, by what became of its batches."""
        for call, batch in zip(self._pipeline.plan.calls, batches, strict=True):
            if batch.status is Status.FAILED:
                text = f"The batch {batch.id} of stage {call.stage} has failed."
                return Closing(int(time.time()), "stage_failed", text)
            if batch.status in (Status.CANCELLING, Status.CANCELLED):
                return Closing(int(time.time()))
        return None

    async def _close(self, closing: Closing) -> None:
        fails = bool(closing.code)
        log.info("pipeline.closed", pipeline_id=self._pipeline.id, code=closing.code)
        await close_pipeline(self._state, self._storage, self._pipeline, closing, fails=fails)

    def _ending(self, record: PipelineRecord, statuses: Sequence[Status]) -> Ending:
        if "failing_at" in record.fields or Status.FAILED in statuses:
            return "failed"
        if self.edges[-1].is_done and set(statuses) == {Status.COMPLETED}:
            return "completed"
        if "cancelling_at" in record.fields or Status.CANCELLED in statuses:
            return "cancelled"
        return "expired"

    async def _finish(self, record: PipelineRecord, statuses: Sequence[Status]) -> None:
        await self.close()
        # While this process stood still, another one may have led the pipeline to its end.
        await self.load()
        if self._damage is not None and "failing_at" not in record.fields:
            await self._close(self._damage)
            return
        status = self._ending(record, statuses)
        await self._end.finish(self._pipeline, status, self.edges, record)

    async def _hand_on(self, batches: Sequence[BatchRecord]) -> bool:
        is_busy, done = False, _done(batches)
        for number, edge in enumerate(self.edges):
            source = batches[number - 1] if number else None
            target = batches[number] if number < len(batches) else None
            is_busy |= await self._advance(edge, number, source, target, done)
        await self._write_counts()
        return is_busy

    async def _advance(
        self,
        edge: EdgeLog,
        number: int,
        source: BatchRecord | None,
        target: BatchRecord | None,
        done: Answered,
    ) -> bool:
        """Make one handover of the edge, if there is something for it."""
        if target is not None and not await self._added(edge, target, done):
            return False
        if edge.is_done:
            if source is not None and source.takes_rows:
                with suppress(ConflictError):
                    await close(self._state, self._storage, source.id)
            return False
        if target is not None and not target.takes_rows:
            # Its window has ended.
            return False
        work = await self._input_work(edge) if source is None else await self._work(number, source)
        if work is None:
            return False
        await edge.hand_over(self._state, target, work)
        if target is not None:
            await self._added(edge, target, done)
        return True

    async def _added(self, edge: EdgeLog, target: BatchRecord, done: Answered) -> bool:
        """Whether all that was handed on has been added."""
        if not edge.has_unadded:
            return True
        try:
            await edge.add(target, done)
        except RoomError:
            # There is some as soon as rows are done, of this pipeline or of other batches.
            return False
        except ConflictError:
            return False
        return True

    async def _input_work(self, edge: EdgeLog) -> Work:
        """The next rows of the input."""
        if self._input is None:
            self._input = input_rows(self._storage, self._pipeline.pinned, skip=edge.read)
        items, failed, size = list[Item](), list[Failed](), 0
        while len(items) + len(failed) < _MAX_ROWS and size < _MAX_BYTES:
            row = await anext(self._input, None)
            if row is None:
                break
            if isinstance(row, Item):
                items.append(row)
                size += len(msgspec.json.encode(row))
            else:
                failed.append(row)
        read = len(items) + len(failed)
        return Work(items, failed, read=read, is_last=not read)

    async def _work(self, number: int, source: BatchRecord) -> Work | None:
        """Results of a call that were committed and not handed on; None if there are none."""
        edge, before = self.edges[number], self.edges[number - 1]
        items, failed, slices, size = list[Item](), list[Failed](), list[int](), 0
        plan, first = source.fields.get("plan", ""), edge.first_left
        if source.status is not Status.IN_PROGRESS:
            return None
        async for page in self._state.slices.pages(source.id, plan, first=first):
            for planned in page:
                if planned.part is None or planned.index in edge.handed:
                    continue
                body = await self._body(source.id, planned.index, planned.part)
                if body is None:
                    continue
                rows = await before.items(planned.slice.first_row, planned.slice.rows)
                for one in self._answered(number - 1, rows, body):
                    (items if isinstance(one, Item) else failed).append(one)  # type: ignore[arg-type]  # each to its own
                slices.append(planned.index)
                # What rows carry may be far more than what they were answered.
                size += len(body) + len(msgspec.json.encode(rows))
                if len(items) >= _MAX_ROWS or size >= _MAX_BYTES or len(slices) >= _MAX_SLICES:
                    return Work(items, failed, slices)
        if slices:
            return Work(items, failed, slices)
        is_last = (
            before.is_done
            and not before.has_unadded
            and len(edge.handed) == source.number("slices_total")
            and before.rows == source.number("total")
        )
        return Work([], is_last=True) if is_last else None

    def _answered(self, call: int, rows: Sequence[Item], body: bytes) -> Sequence[Item | Failed]:
        """What the results make of the rows."""
        lines = {custom_id_of(line): line for line in split(body)}
        answers = self._answers[call]
        return [answers.read(row, lines[row.id]) for row in rows]

    async def _body(self, batch_id: str, index: int, part: Part) -> bytes | None:
        """The results of a slice; None if they are damaged, so that it runs again."""
        with suppress(NotFoundError):
            body = await self._storage.get(part.key)
            if part.fits(body):
                return body
        await drop_part(self._state, self._storage, batch_id, index, part)
        return None

    async def _write_counts(self) -> None:
        """Let the record say how far the pipeline is."""
        last = self.edges[-1]
        fields: dict[str, str | int] = {
            "counts": msgspec.json.encode(counts_of(self.edges)).decode(),
            "rows": last.rows,
            "read": self.edges[0].read,
        }
        if fields == self._written:
            return
        stored = self._pipeline.stored
        await self._state.pipelines.write(stored.id, stored.tenant, stored.created_at, fields)
        self._written = fields
        crash.point("pipelines.counted")


def _done(batches: Sequence[BatchRecord]) -> Answered:
    """What is answered of the pipeline's batches, which hold it in the queue until they end.

    Each of them ends only after its last row has gone on to the next one: room that they kept from
    each other would never come.
    """
    requests, tokens = 0, Counter[str]()
    for batch in batches:
        if batch.status is Status.IN_PROGRESS and (total := batch.number("total")):
            rows = batch.number("completed") + batch.number("failed")
            requests += batch.number("queued_requests") * rows // total
            tokens[batch.fields["queued_model"]] += batch.number("prompt_tokens") * rows // total
    return Answered(requests, tokens)
