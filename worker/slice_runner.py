"""Runs slices on one engine. Waves and the lane job use it alike."""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing

import structlog

from shared.slices import Claim, Stop
from worker import traces
from worker.batch_watch import BatchWatch
from worker.engine_errors import (
    Engine,
    EngineGoneError,
    EngineUnavailableError,
    EngineYieldsError,
)
from worker.outcomes import Outcome, SliceResult, outcome, public_reason, worst
from worker.row_limiter import RowLimiter
from worker.rows import PartBody, nothing
from worker.slice_io import SliceInput
from worker.slice_run import SliceRun

log = structlog.get_logger()

#: The lines of fewer rows are put together while nothing else goes on.
_MANY_ROWS = 32
#: Calls whose rows were all withdrawn end within this time.
_WITHDRAWN_SECONDS = 0.05


def answered_body(claim: Claim, given: SliceInput, *, pool: str) -> PartBody | None:
    """The results of a slice whose rows all have answers before it runs; None for any other."""
    if isinstance(given.lines, Outcome):
        return None
    run = SliceRun(claim, given.lines, given.kept, pool=pool)
    return run.body() if run.is_done else None


class SliceRunner:
    """Limits how many rows are in the engine, and stops the slices of batches that stop."""

    def __init__(
        self,
        engine: Engine,
        watch: BatchWatch,
        *,
        rows_in_engine: int,
        rows_per_engine_call: int,
        pool: str = "",
        wave: str = "",
    ) -> None:
        """`pool` is the engine's, which its rows' GPU time is counted for.

        `wave` is the trace context of the wave that all slices here are part of.
        """
        self._engine = engine
        self._watch = watch
        self._step = rows_per_engine_call
        self._pool = pool
        self._wave = wave
        self._limiter = RowLimiter(max(rows_in_engine, rows_per_engine_call))
        self._telling: set[asyncio.Task[None]] = set()

    async def run(
        self, claim: Claim, given: SliceInput, *, entered: asyncio.Event | None = None
    ) -> SliceResult:
        """Run the slice's rows that have no result yet, until its batch stops.

        `entered` is set as soon as none of them waits for room in the engine any more.
        """
        entered = entered or asyncio.Event()
        with traces.slice_run(claim, wave=self._wave) as span:
            try:
                result = await self._run(claim, given, span.traceparent, entered)
            finally:
                entered.set()
            traces.note_result(span, result)
            return result

    async def _run(
        self, claim: Claim, given: SliceInput, trace: str, entered: asyncio.Event
    ) -> SliceResult:
        if isinstance(given.lines, Outcome):
            return SliceResult(given.lines, nothing())
        run = SliceRun(claim, given.lines, given.kept, pool=self._pool)
        chunks = run.chunks(self._step)
        calls = [asyncio.ensure_future(self._call(run, chunk, trace, entered)) for chunk in chunks]

        def stop(reason: Stop) -> None:
            run.stop = reason
            entered.set()
            for chunk, call in zip(chunks, calls, strict=True):
                if reason is Stop.CLOSED or not run.in_engine(chunk):
                    call.cancel()
            if reason is Stop.PAUSED and run.rows_in_engine:
                self._withdraw_soon(run)

        with self._watch.stopping(claim, stop):
            ends = await asyncio.gather(*calls, return_exceptions=True)
        errors = [end for end in ends if isinstance(end, Exception)]
        return await self._result(run, worst(errors) if errors else None)

    async def _result(self, run: SliceRun, error: Exception | None) -> SliceResult:
        # Of many rows, it is megabytes that other slices would wait for.
        is_long = len(run.lines) > _MANY_ROWS
        body = await asyncio.to_thread(run.body) if is_long else run.body()
        if error is None or run.is_done:
            return SliceResult(Outcome.PAUSED if run.is_paused else Outcome.DONE, body)
        end = outcome(error)
        if end is Outcome.STRUCK:
            log.warning("slice.struck", batch_id=run.claim.batch_id, reason=type(error).__name__)
        return SliceResult(end, body, public_reason(error), run.strike_ranges())

    def _withdraw_soon(self, run: SliceRun) -> None:
        telling = asyncio.ensure_future(self._withdraw(run))
        self._telling.add(telling)
        telling.add_done_callback(self._telling.discard)

    async def _withdraw(self, run: SliceRun) -> None:
        """Take out the rows that wait in front of the engine, and tell how many are in it."""
        await self._engine.withdraw(run.claim.batch_id)
        await asyncio.sleep(_WITHDRAWN_SECONDS)
        await self._watch.tell_ending(run.claim, run.rows_in_engine)

    async def _call(
        self, run: SliceRun, chunk: Sequence[int], trace: str, entered: asyncio.Event
    ) -> None:
        """Run the rows at these positions of the slice until each has its result."""
        while chunk:
            try:
                await self._call_once(run, chunk, trace, entered)
            except EngineYieldsError:
                # Another replica has room for those that are left.
                chunk = run.without_result(chunk)
            else:
                chunk = run.to_ask_again(chunk)

    async def _call_once(
        self, run: SliceRun, chunk: Sequence[int], trace: str, entered: asyncio.Event
    ) -> None:
        """Run the rows at these positions of the slice together."""
        lines = [run.lines[position] for position in chunk]
        order = [run.works[position] for position in chunk]
        async with self._limiter.borrowed(len(chunk)) as places:
            run.enter(chunk)
            if run.has_entered:
                entered.set()
            try:
                with traces.engine_call(run.claim, len(chunk), parent=trace) as call:
                    async with aclosing(self._engine.run_lines(lines, order)) as groups:
                        async for group in groups:
                            for number, result in group:
                                run.answer(chunk[number], result)
                                call.note(chunk[number], result[0])
                            await places.give_back(len(group))
            except Exception as error:
                if outcome(error) is Outcome.STRUCK:
                    run.strike(_struck(chunk, error))
                raise
            finally:
                was_withdrawn = run.in_engine(chunk)
                run.leave(chunk)
        if was_withdrawn and run.stop is None:
            # The batch was paused and resumed before this run heard of it.
            raise EngineUnavailableError("Rows were withdrawn from the engine's queue.")


def _struck(chunk: Sequence[int], error: Exception) -> Sequence[int]:
    """Those of the rows that were in the engine when it died."""
    if not isinstance(error, EngineGoneError) or error.positions is None:
        return chunk
    return [chunk[position] for position in error.positions]
