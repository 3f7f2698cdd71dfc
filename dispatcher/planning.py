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
from shared.slices import Slice
from shared.state import BatchRecord, State
from shared.storage import ChangedError, Storage
from shared.validation import InputCheck, Limits, Row, unreadable

log = structlog.get_logger()

_SMALL_BYTES = 1024 * 1024
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
    ) -> None:
        self._state = state
        self._storage = storage
        self._catalog = catalog
        self._slice_limits = slice_limits
        self._max_rows = max_rows

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
            limits=Limits(rows=self._max_rows),
        )
        try:
            count = await self._read(record, check, plan)
        except (ChangedError, NotFoundError) as error:
            is_changed = isinstance(error, ChangedError)
            check.problems = [unreadable(record.fields["input_file_id"], is_changed=is_changed)]
            count = 0
        try:
            if check.problems:
                await self._refuse(batch_id, check)
            else:
                await self._start(batch_id, check, plan, count)
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

    async def _start(self, batch_id: str, check: InputCheck, plan: str, slices: int) -> None:
        model = check.model or ""
        lane = self._catalog.lane_of(model).name
        is_ours = await self._state.apply(
            batch_id,
            Event.INPUT_ACCEPTED,
            {
                "plan": plan,
                "model": model,
                "lane": lane,
                "total": check.rows,
                "slices_total": slices,
            },
        )
        if is_ours:
            log.info(
                "batch.planned",
                batch_id=batch_id,
                lane=lane,
                requests=check.rows,
                slices=slices,
            )

    async def _refuse(self, batch_id: str, check: InputCheck) -> None:
        problems = [problem.model_dump() for problem in check.problems]
        await self._state.apply(
            batch_id,
            Event.INPUT_REJECTED,
            {"errors": json.dumps(problems), "first_error": problems[0]["message"]},
        )
        log.info("batch.refused", batch_id=batch_id, problems=check.problem_count)


def _cut(slicer: Slicer, rows: Iterable[Row]) -> list[Slice]:
    pieces = (slicer.add(row.start, row.end, row.tokens) for row in rows)
    return [piece for piece in pieces if piece is not None]
