"""Runs slices in which an engine died, with nothing else in it, until it is known of which row.

Rows in doubt run in small groups one after another, then the others together. The next death ends
the run: what it shows goes into Redis with the slice, and others of the lane have their turn.
"""

import asyncio
import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import structlog

from shared import ids
from shared.dead_rows import DeadRow
from shared.input.request_lines import custom_id_of
from shared.slices import Claim
from worker.engine_errors import Engine, Result
from worker.row_limiter import RowRoom
from worker.rows import assemble, requests
from worker.slice_runner import BatchWatch, Outcome, SliceResult, gravity, last_words, outcome
from worker.strikes import MOST_STRIKES, TOGETHER, Place, given_up, strikes_of, to_doubts, trials

log = structlog.get_logger()

_SERVER_ERROR = 500


class _Case:
    """A slice under trial: its lines, and what is known of each."""

    def __init__(self, claim: Claim, lines: Sequence[bytes], *, most_deaths: int) -> None:
        self.claim = claim
        self.lines = lines
        self.strikes = strikes_of(claim.strike_ranges, len(lines))
        self.is_closed = False
        self.was_struck = False
        least = 1 if claim.engine_deaths >= most_deaths else MOST_STRIKES
        self.dead = [row for row, count in enumerate(self.strikes) if count >= least]
        self.results: list[Result | None] = [None] * len(lines)
        for row in self.dead:
            words = given_up(
                self.strikes[row], before=claim.strikes_before, engine_deaths=claim.engine_deaths
            )
            self.results[row] = (_SERVER_ERROR, words)

    @property
    def is_done(self) -> bool:
        return self.is_closed or None not in self.results

    @property
    def has_answers(self) -> bool:
        return len(self.results) - self.results.count(None) > len(self.dead)

    def strike(self, row: int) -> None:
        self.strikes[row] += 1
        self.was_struck = True

    def done(self) -> SliceResult:
        claim = self.claim
        body = assemble(claim.batch_id, claim.slice, self.lines, self.results)
        return SliceResult(Outcome.DONE, body, dead=tuple(map(self._dead_row, self.dead)))

    def not_done(self, how: Outcome, reason: str) -> SliceResult:
        empty = assemble(self.claim.batch_id, self.claim.slice, [], [])
        return SliceResult(how, empty, reason, to_doubts(self.strikes))

    def _dead_row(self, row: int) -> DeadRow:
        claim, number = self.claim, self.claim.slice.row_numbers[row]
        return DeadRow(
            id=ids.result_id(claim.batch_id, number),
            batch_id=claim.batch_id,
            tenant=claim.tenant,
            lane=claim.lane,
            line=number + 1,
            custom_id=custom_id_of(self.lines[row]),
            deaths=self.strikes[row] - claim.strikes_before,
            reason=claim.last_words,
            at=int(time.time()),
            bucket=claim.bucket,
            key=claim.key,
            etag=claim.etag,
            start=claim.slice.start,
            end=claim.slice.end,
            place=number - claim.slice.row_numbers[0],
            version_id=claim.version_id,
        )


class SuspectRunner:
    """To be used while no other row of the lane is in its engine."""

    def __init__(
        self,
        engine: Engine,
        watch: BatchWatch,
        *,
        rows_in_engine: int,
        rows_per_engine_call: int,
        most_deaths: int,
        most_in_a_row: int,
    ) -> None:
        """`most_deaths` of a batch, and so many in a row of the lane."""
        self._engine = engine
        self._watch = watch
        self._step = rows_per_engine_call
        self._room = RowRoom(max(rows_in_engine, rows_per_engine_call, TOGETHER))
        self._most_deaths = most_deaths
        self._most_in_a_row = most_in_a_row

    async def run(
        self, claims: Sequence[Claim], bodies: Sequence[bytes | None]
    ) -> list[SliceResult]:
        """Run the slices up to the next death of the engine; a result for each claim."""
        cases = {
            number: _Case(claim, requests(claim.slice, body), most_deaths=self._most_deaths)
            for number, (claim, body) in enumerate(zip(claims, bodies, strict=True))
            if body is not None
        }
        error = await self._run(cases)
        if error is not None and outcome(error) is Outcome.STRUCK:
            log.warning(
                "suspects.struck",
                batches=sorted({case.claim.batch_id for case in cases.values() if case.was_struck}),
                reason=type(error).__name__,
            )
        results = [
            self._result(cases.get(number), claim, error) for number, claim in enumerate(claims)
        ]
        # One engine has died, however many slices it had rows of. That one dies of a row that has
        # killed before says nothing of the engine.
        for number, (claim, result) in enumerate(zip(claims, results, strict=True)):
            if result.outcome is Outcome.STRUCK and not claim.strikes_before:
                results[number] = result._replace(
                    most_deaths=self._most_in_a_row,
                    gave_results=any(case.has_answers for case in cases.values()),
                )
                break
        return results

    def _result(self, case: _Case | None, claim: Claim, error: Exception | None) -> SliceResult:
        if case is None:
            return SliceResult(Outcome.INPUT_LOST, assemble(claim.batch_id, claim.slice, [], []))
        if case.is_done:
            return case.done()
        if error is None:
            raise RuntimeError(f"slice {claim.index} of {claim.batch_id} has rows that did not run")
        reason = last_words(error)
        how = outcome(error)
        # Rows of other slices were in the engine.
        is_spared = how is Outcome.STRUCK and not case.was_struck
        return case.not_done(Outcome.UNSEEN if is_spared else how, reason)

    async def _run(self, cases: dict[int, _Case]) -> Exception | None:
        """Run what has no result yet; returns the error that ended it."""
        numbers = list(cases)
        groups = trials([cases[number].strikes for number in numbers])
        for group in groups:
            places = [(numbers[case], row) for case, row in group]
            if (error := await self._together(cases, [places])) is not None:
                return error
        rest = [
            [(number, row) for row in range(start, min(start + self._step, len(case.lines)))]
            for number, case in cases.items()
            for start in range(0, len(case.lines), self._step)
        ]
        return await self._together(cases, rest)

    async def _together(
        self, cases: dict[int, _Case], calls: Sequence[Sequence[Place]]
    ) -> Exception | None:
        """Run the rows among these that have no result yet, all calls at once."""
        # Where one batch's end has stopped a call, it is made once more for the others' rows.
        while left := [some for call in calls if (some := _left(cases, call))]:
            tasks = [asyncio.ensure_future(self._call(cases, call)) for call in left]
            with ExitStack() as stack:
                for number in {number for call in left for number, _ in call}:
                    stop = partial(_close, cases[number], number, left, tasks)
                    batch_id = cases[number].claim.batch_id
                    stack.enter_context(self._watch.closing(batch_id, stop))
                ended = await asyncio.gather(*tasks, return_exceptions=True)
            broken: list[Exception] = []
            for call, end in zip(left, ended, strict=True):
                if isinstance(end, list):
                    for (number, row), result in zip(call, end, strict=True):
                        cases[number].results[row] = result
                elif isinstance(end, Exception):
                    broken.append(end)
                    if outcome(end) is Outcome.STRUCK:
                        for number, row in call:
                            cases[number].strike(row)
            if broken:
                return min(broken, key=gravity)
        return None

    async def _call(self, cases: dict[int, _Case], call: Sequence[Place]) -> list[Result]:
        async with self._room.taken(len(call)):
            return await self._engine.run_lines([cases[number].lines[row] for number, row in call])


def _left(cases: dict[int, _Case], call: Sequence[Place]) -> list[Place]:
    return [
        (number, row)
        for number, row in call
        if not cases[number].is_closed and cases[number].results[row] is None
    ]


def _close(
    case: _Case, number: int, calls: Sequence[Sequence[Place]], tasks: Sequence["asyncio.Task[Any]"]
) -> None:
    """The batch of the case runs no longer."""
    case.is_closed = True
    for call, task in zip(calls, tasks, strict=True):
        if any(other == number for other, _ in call):
            task.cancel()
