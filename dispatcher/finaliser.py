"""Ends batches: makes their result files, creates the commit in S3, and carries it out in Redis.

The parts are frozen by then, so every finaliser of a batch writes the same bytes under the same
keys. One that is killed is followed by another.
"""

import time
from collections.abc import Mapping
from contextlib import suppress

import structlog

from dispatcher.early_files import EarlyFiles, EarlyOutputs
from dispatcher.open_inputs import OpenInputs
from dispatcher.result_files import ResultFiles, Results
from dispatcher.result_lines import InputLostError
from dispatcher.row_cache import RowCache
from dispatcher.tables import Tables
from dispatcher.traces import step
from dispatcher.unrun_rows import CLOSING_REASONS
from shared import crash
from shared.errors import (
    BrokenObjectError,
    InvalidTransitionError,
    NotFoundError,
    TransientError,
)
from shared.ledger.commits import Commit, carry_out, create_commit, read_commit
from shared.ledger.endings import ending_event, new_commit
from shared.ledger.parts import drop_broken
from shared.ledger.tables import MadeTable
from shared.lifecycle import Event
from shared.slices import Part
from shared.state import BatchRecord, State
from shared.storage import Storage

log = structlog.get_logger()

#: A batch waits this long for a part that S3 fails for while it answers for other objects.
_UNANSWERED_SECONDS = 120.0


class Finaliser:
    """Ends batches that have nothing left to run."""

    def __init__(
        self,
        state: State,
        storage: Storage,
        *,
        output_seconds: int,
        tag_results: bool = False,
        keep_parts: bool = False,
        unanswered_seconds: float = _UNANSWERED_SECONDS,
        tables: Tables | None = None,
        open_inputs: OpenInputs | None = None,
        cache: RowCache | None = None,
        early_files: EarlyOutputs | None = None,
    ) -> None:
        """A part for which S3 fails, while it answers for others, is given up after that time.

        Parts are kept for a day after the batch's end, or swept at once. Without `early_files`, no
        output file is begun before its batch has ended.
        """
        self._state = state
        self._storage = storage
        self._files = ResultFiles(state, storage)
        self._tables = tables or Tables(storage)
        self._open_inputs = open_inputs or OpenInputs(state, storage)
        self._cache = cache
        self._early_files = early_files or EarlyFiles(state, storage)
        self._output_seconds = output_seconds
        self._tag_results = tag_results
        self._keep_parts = keep_parts
        self._unanswered_seconds = unanswered_seconds
        #: Since when S3 fails for the parts of batches, on the monotonic clock.
        self._unanswered: dict[str, float] = {}

    async def finish(self, batch_id: str) -> None:
        """End a `finalizing` or `cancelling` batch, unless slices of it are still claimed.

        A part that is damaged is taken back, and its slice runs again if there is time. Raises
        IncompleteError when a finished batch's parts do not hold every row exactly once.
        """
        record = await self._state.batches.get(batch_id)
        if record.status not in CLOSING_REASONS or await self._state.claims.inflight(batch_id):
            return
        with step("finish", record):
            await self._finish(record)

    async def _finish(self, record: BatchRecord) -> None:
        batch_id, event = record.id, ending_event(record)
        if event is not Event.OUTPUT_COMMITTED:
            await self._state.claims.commit_kept(batch_id)
        part = await self._files.part_as_file(record)
        if part is None and (first := await self._first_commit(batch_id, event)) is not None:
            await self._carry_out(first)
            return
        try:
            results = await self._make_files(record, event, part)
        except (BrokenObjectError, NotFoundError, TransientError) as error:
            # All of them, so that the rows of all run again together.
            if isinstance(error, TransientError) and await self._may_answer_later(batch_id):
                raise
            plan = record.fields.get("plan", "")
            if not await drop_broken(self._state, self._storage, batch_id, plan):
                raise
            code = type(error).__name__
            log.warning("batch.finish_broke", batch_id=batch_id, code=code, reason=str(error))
            return
        self._unanswered.pop(batch_id, None)
        crash.point("finaliser.assembled")
        place = await self._open_inputs.make(record)
        table = await self._make_table(record, event, results)
        try:
            commit = await self._commit(record, event, results, table, place)
        except InvalidTransitionError as late:
            _tell_late(late)
            return
        crash.point("finaliser.committed")
        if self._cache is not None:
            # Before its client hears of the end, and may ask the same again.
            await self._cache.fill(record.having(place), results)
        await self._carry_out(commit)

    async def _first_commit(self, batch_id: str, event: Event) -> Commit | None:
        """The commit, if there is one: a Redis that went back in time does not know how it ended.

        To make the files again would overwrite those that the commit names: rows that have run
        twice have other answers.
        """
        with suppress(NotFoundError, BrokenObjectError):
            return await read_commit(self._storage, batch_id, event)
        return None

    async def _carry_out(self, commit: Commit) -> None:
        try:
            await carry_out(self._state, self._storage, commit)
            crash.point("finaliser.concluded")
        except InvalidTransitionError as late:
            _tell_late(late)

    async def _may_answer_later(self, batch_id: str) -> bool:
        """Whether S3 is away, or has failed only for this batch and only for a short time."""
        try:
            await self._storage.check_reads()
        except TransientError:
            self._unanswered.pop(batch_id, None)
            return True
        now = time.monotonic()
        return now < self._unanswered.setdefault(batch_id, now) + self._unanswered_seconds

    async def _make_files(self, record: BatchRecord, event: Event, part: Part | None) -> Results:
        early = await self._early_files.take(record, event)
        try:
            results = await self._files.make(record, event, part, early=early)
        except InputLostError:
            # The input is the sender's own object, which may be deleted before its rows have run.
            log.warning("batch.input_lost", batch_id=record.id)
            results = await self._files.make(record, event, part, has_names=False)
        if self._tag_results:
            for file in filter(None, results):
                await self._storage.tag(file.key, {"tenant": record.tenant})
        return results

    async def _make_table(
        self, record: BatchRecord, event: Event, results: Results
    ) -> MadeTable | None:
        table = await self._tables.make(record, event, results)
        if self._tag_results and table is not None and table.is_ours:
            for file in table.files:
                await self._storage.tag(file.key, {"tenant": record.tenant})
        return table

    async def _commit(
        self,
        before: BatchRecord,
        event: Event,
        results: Results,
        table: MadeTable | None,
        input_place: Mapping[str, str | int],
    ) -> Commit:
        """Create the commit object, or read the one that was first.

        Raises InvalidTransitionError when the batch is no longer what it was `before`, and
        TransientError while Redis is being rebuilt, because its record may be out of date.
        """
        record, pin = await self._state.batches.pinned(before.id)
        if (record.status, record.fields.get("plan")) != (before.status, before.fields.get("plan")):
            raise InvalidTransitionError(record.id, event, record.status)
        commit = new_commit(
            record,
            event,
            pin,
            output=results.output,
            error=results.error,
            table=table,
            input_place=input_place,
            bucket=self._storage.bucket,
            output_seconds=self._output_seconds,
            keep_parts=self._keep_parts,
        )
        return await create_commit(self._storage, commit)


def _tell_late(late: InvalidTransitionError) -> None:
    # For example, it has been cancelled. The next round ends it by its new status.
    log.warning("batch.finish_late", batch_id=late.batch_id, status=late.status)
