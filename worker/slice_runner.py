"""Runs slices on one engine. Waves and the lane job use it alike."""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing

import structlog

from shared.ordering.work import Work
from shared.slices import Claim
from worker.batch_watch import BatchWatch
from worker.engine_errors import Engine, Result
from worker.outcomes import Outcome, SliceResult, outcome, public_reason, worst
from worker.row_limiter import RowLimiter
from worker.row_works import works
from worker.rows import assemble, requests
from worker.strikes import strike_ranges

log = structlog.get_logger()


class SliceRunner:
    """Limits how many rows are in the engine, and stops the slices of batches that close."""

    def __init__(
        self,
        engine: Engine,
        watch: BatchWatch,
        *,
        rows_in_engine: int,
        rows_per_engine_call: int,
    ) -> None:
        self._engine = engine
        self._watch = watch
        self._step = rows_per_engine_call
        self._limiter = RowLimiter(max(rows_in_engine, rows_per_engine_call))

    async def run(self, claim: Claim, body: bytes | Outcome) -> SliceResult:
        """Run the slice's rows; those that had not run when the batch closed are left out.

        `body` is what `slice_io.fetch` returned.
        """
        empty = assemble(claim.batch_id, claim.slice, [], [])
        if isinstance(body, Outcome):
            return SliceResult(body, empty)
        lines = requests(claim.slice, body)
        order = works(claim)
        starts = range(0, len(lines), self._step)
        chunks = [lines[start : start + self._step] for start in starts]
        calls = [
            asyncio.ensure_future(self._call(chunk, order[start : start + self._step]))
            for start, chunk in zip(starts, chunks, strict=True)
        ]
        with self._watch.closing(claim.batch_id, lambda: [call.cancel() for call in calls]):
            ends = await asyncio.gather(*calls, return_exceptions=True)
        if errors := [end for end in ends if isinstance(end, Exception)]:
            error = worst(errors)
            if outcome(error) is Outcome.STRUCK:
                log.warning("slice.struck", batch_id=claim.batch_id, reason=type(error).__name__)
            ranges = strike_ranges(_strikes(chunks, ends))
            return SliceResult(outcome(error), empty, public_reason(error), ranges)
        results: list[Result | None] = []
        for chunk, end in zip(chunks, ends, strict=True):
            results += [None] * len(chunk) if isinstance(end, BaseException) else end
        return SliceResult(Outcome.DONE, assemble(claim.batch_id, claim.slice, lines, results))

    async def _call(self, lines: Sequence[bytes], order: Sequence[Work]) -> list[Result]:
        results: dict[int, Result] = {}
        async with (
            self._limiter.borrowed(len(lines)) as places,
            aclosing(self._engine.run_lines(lines, order)) as groups,
        ):
            async for group in groups:
                results.update(group)
                await places.give_back(len(group))
        return [results[position] for position in range(len(lines))]


def _strikes(
    chunks: Sequence[Sequence[bytes]], ends: Sequence[list[Result] | BaseException]
) -> list[int]:
    """One for each row that was in the engine when it died."""
    strikes: list[int] = []
    for chunk, end in zip(chunks, ends, strict=True):
        is_struck = isinstance(end, Exception) and outcome(end) is Outcome.STRUCK
        strikes += [int(is_struck)] * len(chunk)
    return strikes
