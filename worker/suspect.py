"""A suspect: a slice in which an engine died, and what is known about each of its rows. Pure."""

from collections.abc import Sequence

from shared import ids
from shared.dead_rows import DeadRow
from shared.input.request_lines import custom_id_of, split
from shared.slices import Claim, Stop
from worker.asked_again import AskedAgain
from worker.engine_errors import Result
from worker.engine_results import SERVER_ERROR
from worker.kept_rows import kept_rows, with_bad_lines, with_known_rows
from worker.outcomes import Outcome, SliceResult
from worker.row_works import another_attempt, works
from worker.rows import PartBody, assemble
from worker.strikes import MAX_STRIKES, dead_row_error, strike_ranges, strikes_by_row


class Suspect:
    """The slice while it runs. Rows with too many strikes have an error from the start."""

    def __init__(
        self,
        claim: Claim,
        lines: bytes,
        kept: bytes,
        *,
        max_deaths: int,
        max_tenant_deaths: int,
        pool: str = "",
    ) -> None:
        """`lines` and `kept` are bodies as `slice_io.fetch` gives them; `pool` is the engine's.

        From `max_deaths` engines on that died of the batch, or `max_tenant_deaths` that died of its
        tenant's rows today, none of its rows is tried alone.
        """
        self.claim = claim
        self._pool = pool
        self.lines = split(lines)
        self.works = list(works(claim, self.lines))
        self.strikes = strikes_by_row(claim.strike_ranges, len(self.lines))
        #: Why its batch has stopped, if it has.
        self.stop: Stop | None = None
        #: Whether an engine died with a row of it in this run.
        self.was_struck = False
        limit = claim.tenant_death_limit
        tenants_limit = max_tenant_deaths if limit is None else limit
        is_spent = claim.tenant_deaths >= tenants_limit
        fatal = 1 if is_spent or claim.engine_deaths >= max_deaths else MAX_STRIKES
        answered = kept_rows(claim.slice, claim.kept, kept)
        answered = with_known_rows(answered, claim, self.lines)
        self._kept = with_bad_lines(answered, claim, self.lines)
        self._dead = [
            row
            for row, count in enumerate(self.strikes)
            if count >= fatal and row not in self._kept
        ]
        self.results: list[Result | None] = [None] * len(self.lines)
        self._asked_again = AskedAgain(claim, self.lines)
        for row in self._dead:
            error = dead_row_error(
                self.strikes[row],
                before=claim.strikes_before,
                engine_deaths=claim.engine_deaths,
                tenants_limit=tenants_limit if is_spent else None,
            )
            self.results[row] = (SERVER_ERROR, error)

    @property
    def is_done(self) -> bool:
        return self.stop is Stop.CLOSED or self._has_all

    @property
    def is_paused(self) -> bool:
        """Whether rows are left for a later run, because the batch is paused."""
        return self.stop is Stop.PAUSED and not self._has_all

    @property
    def has_answers(self) -> bool:
        """Whether the engine answered any of its rows."""
        return len(self.results) - self.results.count(None) > len(self._dead)

    def needs(self, row: int) -> bool:
        """Whether the row still has to run."""
        return self.stop is None and self.results[row] is None and row not in self._kept

    def answer(self, row: int, result: Result) -> None:
        """Note the row's result, unless it is to be asked again."""
        if self._asked_again.takes(row, result):
            self.results[row] = result
        else:
            self.works[row] = another_attempt(self.works[row])

    def strike(self, row: int) -> None:
        """Note that an engine died with the row in it, unless it was answered before that."""
        if self.results[row] is None:
            self.strikes[row] += 1
            self.was_struck = True

    def done(self, *, now: int) -> SliceResult:
        """The result of a slice whose rows all have one, or whose batch has closed."""
        dead = tuple(self._dead_row(row, now) for row in self._dead)
        return SliceResult(Outcome.DONE, self._body(self.results), dead=dead)

    def not_done(self, outcome: Outcome, reason: str = "") -> SliceResult:
        """The result of a slice that has to run again, with the rows that were answered."""
        # The next run gives up the dead rows, and says so.
        answered = [None if row in self._dead else one for row, one in enumerate(self.results)]
        return SliceResult(outcome, self._body(answered), reason, strike_ranges(self.strikes))

    @property
    def _has_all(self) -> bool:
        return all(
            result is not None or row in self._kept for row, result in enumerate(self.results)
        )

    def _body(self, results: Sequence[Result | None]) -> PartBody:
        claim = self.claim
        if self.stop is Stop.CLOSED:
            results = self._asked_again.with_last(results)
        return assemble(
            claim.batch_id,
            claim.slice,
            self.lines,
            results,
            self._kept,
            pool=self._pool,
            refused=self._asked_again.answers,
        )

    def _dead_row(self, row: int, now: int) -> DeadRow:
        claim, number = self.claim, self.claim.slice.row_numbers[row]
        return DeadRow(
            id=ids.result_id(claim.batch_id, number),
            batch_id=claim.batch_id,
            tenant=claim.tenant,
            lane=claim.lane,
            line=number + 1,
            custom_id=custom_id_of(self.lines[row]) or "",
            deaths=self.strikes[row] - claim.strikes_before,
            reason=claim.last_words,
            at=now,
            bucket=claim.bucket,
            key=claim.key,
            etag=claim.etag,
            start=claim.slice.start,
            end=claim.slice.end,
            place=number - claim.slice.row_numbers[0],
            version_id=claim.version_id,
        )
