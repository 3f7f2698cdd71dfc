"""The run of one slice: which of its rows are answered, in the engine, or struck. Pure."""

from collections.abc import Iterable, Sequence

from shared.input.request_lines import split
from shared.slices import Claim, Stop, StrikeRange
from worker.asked_again import AskedAgain
from worker.engine_errors import Result
from worker.kept_rows import kept_rows, with_bad_lines, with_known_rows
from worker.row_works import another_attempt, works
from worker.rows import PartBody, assemble
from worker.strikes import strike_ranges

#: A group of rows is one message, unless a single row is longer.
_MAX_CHUNK_BYTES = 1024 * 1024


class SliceRun:
    """Begins with what an earlier run has kept. Rows are named by their positions in the slice."""

    def __init__(self, claim: Claim, lines: bytes, kept: bytes, *, pool: str = "") -> None:
        """`lines` and `kept` are bodies as `slice_io.fetch` gives them; `pool` is the engine's."""
        self.claim = claim
        self._pool = pool
        self.lines = split(lines)
        #: Why the run must stop, if it must.
        self.stop: Stop | None = None
        answered = kept_rows(claim.slice, claim.kept, kept)
        answered = with_known_rows(answered, claim, self.lines)
        self._kept = with_bad_lines(answered, claim, self.lines)
        self._results: list[Result | None] = [None] * len(self.lines)
        self._asked_again = AskedAgain(claim, self.lines)
        self._in_engine: set[int] = set()
        #: Rows that have not been in the engine yet.
        self._outside = set(self._open_rows())
        self._strikes = [0] * len(self.lines)
        self.works = list(works(claim, self.lines))
        if claim.is_last and (left := self._in_order()):
            self.works[left[-1]] = self.works[left[-1]]._replace(ends_batch=True)

    @property
    def is_done(self) -> bool:
        """Whether every row has a result."""
        return not self._open_rows()

    @property
    def is_paused(self) -> bool:
        """Whether rows are left for a later run, because the batch is paused."""
        return self.stop is Stop.PAUSED and not self.is_done

    @property
    def rows_in_engine(self) -> int:
        return len(self._in_engine)

    @property
    def has_entered(self) -> bool:
        """Whether every row has been in the engine that had no result before this run."""
        return not self._outside

    def chunks(self, rows: int) -> list[list[int]]:
        """The rows that have no result yet, in groups of so many. Those that begin alike are near.

        Long rows are in smaller groups.

        The engine's queue has an order of its own, but sees only a part of a slice at a time.
        """
        chunks: list[list[int]] = []
        size = 0
        for position in self._in_order():
            size += len(self.lines[position])
            if not chunks or len(chunks[-1]) == rows or size > _MAX_CHUNK_BYTES:
                chunks.append([])
                size = len(self.lines[position])
            chunks[-1].append(position)
        return chunks

    def in_engine(self, chunk: Iterable[int]) -> bool:
        """Whether any of these rows is in the engine."""
        return not self._in_engine.isdisjoint(chunk)

    def enter(self, chunk: Iterable[int]) -> None:
        """Note that the rows go to the engine."""
        self._in_engine.update(chunk)
        self._outside.difference_update(chunk)

    def answer(self, position: int, result: Result) -> None:
        """Note the row's result, unless it is to be asked again."""
        if self._asked_again.takes(position, result):
            self._results[position] = result
        else:
            self.works[position] = another_attempt(self.works[position])
        self._in_engine.discard(position)

    def to_ask_again(self, chunk: Iterable[int]) -> list[int]:
        """Those of the rows that have an answer which did not fit, unless the run must stop."""
        if self.stop is not None:
            return []
        return [one for one in chunk if self._results[one] is None and one in self._asked_again]

    def without_result(self, chunk: Iterable[int]) -> list[int]:
        """Those of the rows that have no result yet, unless the run must stop."""
        return [] if self.stop is not None else [one for one in chunk if not self._results[one]]

    def leave(self, chunk: Iterable[int]) -> None:
        """Note that the rows are no longer in the engine."""
        self._in_engine.difference_update(chunk)

    def strike(self, chunk: Iterable[int]) -> None:
        """Note that the engine died with those of the rows that were in it."""
        for position in chunk:
            self._strikes[position] = int(position in self._in_engine)

    def strike_ranges(self) -> tuple[StrikeRange, ...]:
        """The rows that an engine died with."""
        return strike_ranges(self._strikes)

    def body(self) -> PartBody:
        """The results of all rows that were answered, in this run and before it."""
        results: Sequence[Result | None] = self._results
        if self.stop is Stop.CLOSED:
            results = self._asked_again.with_last(results)
        return assemble(
            self.claim.batch_id,
            self.claim.slice,
            self.lines,
            results,
            self._kept,
            pool=self._pool,
            refused=self._asked_again.answers,
        )

    def _in_order(self) -> list[int]:
        return sorted(self._open_rows(), key=lambda row: (self.works[row].prefix, row))

    def _open_rows(self) -> list[int]:
        return [
            position
            for position, result in enumerate(self._results)
            if result is None and position not in self._kept
        ]
