"""Runs suspects, with nothing else in the engine, until it is known which row kills engines.

Rows with strikes run in small groups, one group after another. Then the other rows run together.
The next death ends the run: the strikes go into Redis with the slices, and others have their turn.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import ExitStack, aclosing
from functools import partial

import structlog

from shared.slices import Claim, Stop
from worker.batch_watch import BatchWatch
from worker.engine_errors import Engine
from worker.outcomes import Outcome, SliceResult, outcome, public_reason, worst
from worker.row_limiter import RowLimiter
from worker.rows import nothing
from worker.slice_io import SliceInput
from worker.strikes import TOGETHER, Place, trial_groups
from worker.suspect import Suspect

log = structlog.get_logger()

#: The suspects of one run, by the position of their claims.
_Suspects = Mapping[int, Suspect]
#: The rows of one call of the engine.
_Call = Sequence[Place]


class SuspectRunner:
    """May run only while no other row of the lane is in the engine."""

    def __init__(
        self,
        engine: Engine,
        watch: BatchWatch,
        *,
        rows_in_engine: int,
        rows_per_engine_call: int,
        max_batch_deaths: int,
        max_lane_deaths: int,
        max_tenant_deaths: int,
        pool: str = "",
    ) -> None:
        """A batch or tenant whose deaths reach a limit has its rows with strikes given up at once.

        A lane fails when as many of its engines as `max_lane_deaths` died in a row.
        """
        self._engine = engine
        self._watch = watch
        self._step = rows_per_engine_call
        self._limiter = RowLimiter(max(rows_in_engine, rows_per_engine_call, TOGETHER))
        self._max_batch_deaths = max_batch_deaths
        self._max_lane_deaths = max_lane_deaths
        self._max_tenant_deaths = max_tenant_deaths
        self._pool = pool
        self._telling: set[asyncio.Task[None]] = set()

    async def run(self, claims: Sequence[Claim], given: Sequence[SliceInput]) -> list[SliceResult]:
        """Run the slices up to the next death of the engine; returns a result for each claim."""
        suspects = {
            number: Suspect(
                claim,
                one.lines,
                one.kept,
                max_deaths=self._max_batch_deaths,
                max_tenant_deaths=self._max_tenant_deaths,
                pool=self._pool,
            )
            for number, (claim, one) in enumerate(zip(claims, given, strict=True))
            if not isinstance(one.lines, Outcome)
        }
        error = await self._run(suspects)
        if error is not None and outcome(error) is Outcome.STRUCK:
            struck = [one.claim.batch_id for one in suspects.values() if one.was_struck]
            log.warning("suspects.struck", batches=sorted(set(struck)), reason=type(error).__name__)
        results = [
            SliceResult(one.lines, nothing())
            if isinstance(one.lines, Outcome)
            else _result(suspects[number], claim, error)
            for number, (claim, one) in enumerate(zip(claims, given, strict=True))
        ]
        return self._with_counted_death(claims, suspects, results)

    def _with_counted_death(
        self, claims: Sequence[Claim], suspects: _Suspects, results: list[SliceResult]
    ) -> list[SliceResult]:
        """Let one struck slice stand for the one engine that died, however many were in it.

        A slice that runs a known killer again does not stand for it: its death says nothing about
        the engine.
        """
        struck = {one.claim.tenant for one in suspects.values() if one.was_struck}
        for number, (claim, result) in enumerate(zip(claims, results, strict=True)):
            if result.outcome is Outcome.STRUCK and not claim.strikes_before:
                results[number] = result._replace(
                    max_deaths=self._max_lane_deaths,
                    gave_results=any(one.has_answers for one in suspects.values()),
                    is_tenants_own=len(struck) == 1,
                )
                break
        return results

    async def _run(self, suspects: _Suspects) -> Exception | None:
        """Run every row that has no result yet; returns the error that ended this."""
        numbers = list(suspects)
        for group in trial_groups([suspects[number].strikes for number in numbers]):
            call = [(numbers[index], row) for index, row in group]
            if (error := await self._run_at_once(suspects, [call])) is not None:
                return error
        rest = [
            [(number, row) for row in range(start, min(start + self._step, len(suspect.lines)))]
            for number, suspect in suspects.items()
            for start in range(0, len(suspect.lines), self._step)
        ]
        return await self._run_at_once(suspects, rest)

    async def _run_at_once(self, suspects: _Suspects, calls: Sequence[_Call]) -> Exception | None:
        """Make all calls at once, with those of their rows that have no result yet."""
        # A batch that closes cancels the calls with its rows. They are made again for the others'.
        while open_calls := [rows for call in calls if (rows := _open_rows(suspects, call))]:
            in_engine: set[Place] = set()
            tasks = [
                asyncio.ensure_future(self._call(suspects, call, in_engine)) for call in open_calls
            ]
            with ExitStack() as stack:
                for number in {number for call in open_calls for number, _ in call}:
                    calls_of_it = [
                        (call, task)
                        for call, task in zip(open_calls, tasks, strict=True)
                        if any(other == number for other, _ in call)
                    ]
                    stop = partial(self._stop, suspects[number], number, calls_of_it, in_engine)
                    stack.enter_context(self._watch.stopping(suspects[number].claim, stop))
                ends = await asyncio.gather(*tasks, return_exceptions=True)
            if errors := [end for end in ends if isinstance(end, Exception)]:
                return worst(errors)
        return None

    def _stop(
        self,
        suspect: Suspect,
        number: int,
        calls: Sequence[tuple[_Call, "asyncio.Task[None]"]],
        in_engine: AbstractSet[Place],
        reason: Stop,
    ) -> None:
        """Stop the calls of a suspect whose batch stops; those in the engine end after a pause."""
        suspect.stop = reason
        for call, task in calls:
            if reason is Stop.CLOSED or in_engine.isdisjoint(call):
                task.cancel()
        rows = sum(other == number for other, _ in in_engine)
        if reason is Stop.PAUSED and rows:
            telling = asyncio.ensure_future(self._watch.tell_ending(suspect.claim, rows))
            self._telling.add(telling)
            telling.add_done_callback(self._telling.discard)

    async def _call(self, suspects: _Suspects, call: _Call, in_engine: set[Place]) -> None:
        lines = [suspects[number].lines[row] for number, row in call]
        order = [suspects[number].works[row] for number, row in call]
        async with self._limiter.borrowed(len(call)) as places:
            in_engine.update(call)
            try:
                async with aclosing(self._engine.run_lines(lines, order)) as groups:
                    async for group in groups:
                        for position, result in group:
                            number, row = call[position]
                            suspects[number].answer(row, result)
                            in_engine.discard((number, row))
                        await places.give_back(len(group))
            except Exception as error:
                if outcome(error) is Outcome.STRUCK:
                    for number, row in in_engine.intersection(call):
                        suspects[number].strike(row)
                raise
            finally:
                in_engine.difference_update(call)


def _open_rows(suspects: _Suspects, call: _Call) -> list[Place]:
    return [(number, row) for number, row in call if suspects[number].needs(row)]


def _result(suspect: Suspect, claim: Claim, error: Exception | None) -> SliceResult:
    if suspect.is_done:
        return suspect.done(now=int(time.time()))
    if suspect.is_paused and (error is None or not suspect.was_struck):
        return suspect.not_done(Outcome.PAUSED)
    if error is None:
        raise RuntimeError(f"Slice {claim.index} of {claim.batch_id} has rows that did not run.")
    end = outcome(error)
    if end is Outcome.STRUCK and not suspect.was_struck:
        # Only rows of other slices were in the engine.
        end = Outcome.UNSEEN
    return suspect.not_done(end, public_reason(error))
