"""From `validating` to `in_progress` or `failed`: one pass over the input makes the plan.

No row is copied: the plan is byte ranges of the input object.
"""

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Iterable

import structlog

from dispatcher.slicing import SliceLimits, Slicer
from shared import crash
from shared.catalog import Catalog
from shared.errors import InvalidTransitionError, NotFoundError
from shared.lifecycle import Event, Status
from shared.limits import queue_code, queue_text
from shared.openai import BatchError
from shared.slices import Slice
from shared.state import BatchRecord, Queue, QueueFullError, Quota, State
from shared.storage import Storage, why_unreadable
from shared.validation import InputCheck, Limits, Row, unreadable

log = structlog.get_logger()

_SMALL_BYTES = 1024 * 1024
_NO_QUOTA = Quota(requests=0, tokens=0)
#: Slices written to Redis at a time.
_WRITE = 100


class Planner:
    """Plans batches; two planners of one batch are harmless, since only one plan is accepted."""

    def __init__(
        self,
        state: State,
        storage: Storage,
        catalog: Catalog,
        *,
        slice_limits: SliceLimits,
        max_rows: int,
        max_embedding_inputs: int = 50_000,
        max_input_bytes: int = 209_715_200,
        quota: Quota = _NO_QUOTA,
    ) -> None:
        self._state = state
        self._storage = storage
        self._catalog = catalog
        self._slice_limits = slice_limits
        self._limits = Limits(rows=max_rows, embedding_inputs=max_embedding_inputs)
        self._max_input_bytes = max_input_bytes
        self._quota = quota

    async def plan(self, batch_id: str) -> None:
        """Validate the batch's input and let the batch start, or fail with every reason."""
        record = await self._state.batches.get(batch_id)
        if record.status is not Status.VALIDATING:
            return
        crash.point("planner.begin")
        plan = secrets.token_hex(4)
        check = InputCheck(
            endpoint=record.fields["endpoint"],
            models=self._catalog.endpoints_by_name(),
            limits=self._limits,
        )
        count = 0
        if record.number("size") > self._max_input_bytes:
            check.problems = [self._too_large(record)]
        else:
            try:
                count = await self._read(record, check, plan)
            except NotFoundError as error:
                file_id, why = record.fields["input_file_id"], why_unreadable(error)
                check.problems = [unreadable(file_id, tenant=record.tenant, why=why)]
        crash.point("planner.sliced")
        try:
            if check.problems:
                await self._refuse(batch_id, check)
            else:
                await self._start(record, check, plan, count)
            crash.point("planner.applied")
        except InvalidTransitionError as error:
            # Cancelled meanwhile, or planned by another: both leave nothing to do.
            log.warning("plan.late", batch_id=batch_id, status=error.status)

    async def _read(self, record: BatchRecord, check: InputCheck, plan: str) -> int:
        """Stream the input once; returns how many slices were written."""
        slicer, written, waiting = Slicer(self._slice_limits), 0, list[Slice]()
        async for chunk in self._chunks(record):
            # Parsing holds the event loop for too long to do it there.
            waiting += await asyncio.to_thread(lambda part: _cut(slicer, check.feed(part)), chunk)
            written = await self._write(record.id, plan, written, waiting, check, least=_WRITE)
        waiting += _cut(slicer, check.finish())
        if (last := slicer.finish()) is not None:
            waiting.append(last)
        return await self._write(record.id, plan, written, waiting, check, least=1)

    async def _write(
        self,
        batch_id: str,
        plan: str,
        written: int,
        waiting: list[Slice],
        check: InputCheck,
        *,
        least: int,
    ) -> int:
        """Store what waits, while at least `least` do; returns how many slices are stored then."""
        if check.problems:
            # The batch will be refused: nobody needs its slices.
            waiting.clear()
        while len(waiting) >= least:
            some = waiting[:_WRITE]
            await self._state.slices.plan(batch_id, plan, written, some)
            del waiting[:_WRITE]
            written += len(some)
        return written

    async def _chunks(self, record: BatchRecord) -> AsyncIterator[bytes]:
        key, bucket, etag = (record.fields[name] for name in ("key", "bucket", "etag"))
        if record.number("size") <= _SMALL_BYTES:
            # One call to the store instead of one for the head and one a chunk.
            yield await self._storage.get(key, etag=etag, bucket=bucket)
            return
        async for chunk in self._storage.stream(key, etag=etag, bucket=bucket):
            yield chunk

    async def _start(self, record: BatchRecord, check: InputCheck, plan: str, slices: int) -> None:
        model = check.model or ""
        lane = self._catalog.lane_of(model).name
        # Adapters share their model's engine, and so its queue.
        entry = self._catalog.model(model)
        quota = self._quota._replace(tokens=entry.max_enqueued_tokens or self._quota.tokens)
        try:
            is_ours = await self._state.apply(
                record.id,
                Event.INPUT_ACCEPTED,
                {
                    "plan": plan,
                    "model": model,
                    "lane": lane,
                    "total": check.rows,
                    "slices_total": slices,
                    "queued_model": entry.name,
                    "prompt_tokens": check.prompt_tokens,
                },
                quota=quota,
            )
        except QueueFullError as error:
            share = check.rows if error.queue == "requests" else check.prompt_tokens
            check.problems = [_no_room(record, error.queue, entry.name, quota, share)]
            await self._refuse(record.id, check)
            return
        if is_ours:
            log.info(
                "batch.planned",
                batch_id=record.id,
                lane=lane,
                requests=check.rows,
                slices=slices,
            )

    def _too_large(self, record: BatchRecord) -> BatchError:
        return BatchError(
            code="too_large",
            param="file_id",
            message=f"The batch input file {record.fields['input_file_id']} is larger than the "
            f"{self._max_input_bytes} maximum: it has {record.number('size')} bytes.",
        )

    async def _refuse(self, batch_id: str, check: InputCheck) -> None:
        problems = [problem.model_dump() for problem in check.problems]
        await self._state.apply(
            batch_id,
            Event.INPUT_REJECTED,
            {"errors": json.dumps(problems), "first_error": problems[0]["message"]},
        )
        log.info("batch.refused", batch_id=batch_id, problems=check.problem_count or len(problems))


def _no_room(record: BatchRecord, queue: Queue, model: str, quota: Quota, share: int) -> BatchError:
    limit = quota.tokens if queue == "tokens" else quota.requests
    text = queue_text(queue, tenant=record.tenant, model=model, limit=limit)
    if share > limit:
        text += f" This batch alone has {share:,}."
    return BatchError(code=queue_code(queue), message=text)


def _cut(slicer: Slicer, rows: Iterable[Row]) -> list[Slice]:
    pieces = (slicer.add(row.start, row.end, row.tokens) for row in rows)
    return [piece for piece in pieces if piece is not None]
