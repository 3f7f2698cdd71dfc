"""The rows in front of an engine, and in which order they are prepared for it. Pure.

What waits, waits here, where the order may change until the last moment. Only a few rows more than
the engine can take are rendered and tokenized.
"""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import exp, inf

from shared.input.beginnings import BLOCK_TOKENS
from shared.ordering.deadlines import Deadline, urgent
from shared.ordering.line import Line
from shared.ordering.prefix_cache import PrefixCache
from shared.ordering.shares import Shares
from shared.ordering.work import Work
from shared.rows_in_engine import TOLD_BATCHES, RowsInEngine
from shared.slices import SliceUsage
from worker.engine_seats import Capacity
from worker.ranks import FIRST

#: Rows that are prepared while all seats are taken: this part of the seats, since many rows of one
#: length end at once, and at least so many.
_AHEAD_PART, _MIN_AHEAD = 2, 8
#: A model that gives vectors has the rows of so many seconds inside. What comes then waits for them
#: in the same process, which is what limits a small model.
STEP_SECONDS = 0.1
#: Up to so many seconds' where a step takes less than this: most of them are on their way then, to
#: be tokenized or written, and a step of few rows takes a core about as long as one of many.
MOST_STEP_SECONDS, SHORT_STEP_SECONDS = 0.25, 0.04
#: Both ways by this part with each step.
_CHANGE = 0.05
#: It has this many inside at least.
MIN_ROWS = 16
#: Over how many seconds rates are measured.
_ROW_RATE_SECONDS, _TOKEN_RATE_SECONDS = 0.5, 30.0
#: How often deadlines are looked at, in seconds.
_LOOK_SECONDS = 1.0
#: The answer that is expected of a live call, in tokens.
_LIVE_ANSWER = 256
#: An answer of a kind that has none yet is expected to be so much longer than all that have come:
#: where lengths spread over powers of two, what runs on is half over.
_LONGER = 2


@dataclass(eq=False, slots=True)
class QueuedRow:
    """A row that waits, or that is inside as soon as it has a rank."""

    work: Work
    charged: float = 0.0
    #: vLLM's priority; the lower goes first.
    rank: int | None = None
    #: Whether it may have a spare seat.
    is_spare: bool = False
    #: Whether it is a live call, which never waits here.
    is_live: bool = False
    #: How many of its sequences had a seat.
    seated: int = 0


class EngineQueue:
    """One engine's rows. Times are Unix seconds."""

    def __init__(self, capacity: Capacity) -> None:
        self._capacity = capacity
        self._waiting: dict[tuple[str, int], QueuedRow] = {}
        cache = PrefixCache(capacity.kv_tokens // BLOCK_TOKENS) if capacity.kv_tokens else None
        self._line = Line(Shares(), cache, tokens_per_block=BLOCK_TOKENS)
        #: The same rows again, as far as they may use spare seats.
        self._small = Line(self._line.shares, is_lifting=False)
        #: Rows that do not wait any more, but are still in the lines: they leave together.
        self._given_up: dict[str, set[int]] = {}
        self._numbers = itertools.count()
        self._ranks = itertools.count(1)
        #: Rows inside that have no spare seat, those of them without a seat, and the others.
        self._inside = self._preparing = self._inside_spare = 0
        self._row_rate = Rate(_ROW_RATE_SECONDS)
        self._token_rate = Rate(_TOKEN_RATE_SECONDS)
        #: The rows of how many seconds a model that gives vectors has inside.
        self._step_seconds = STEP_SECONDS
        self._stepped_at = 0.0
        self._looked_at = 0.0
        #: When the first window of a batch closes that has rows here, as of the last look.
        self.earliest_end = inf

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def inside(self) -> int:
        return self._inside + self._inside_spare

    def add(self, work: Work) -> QueuedRow:
        """Let a row wait; the order among the rows of a batch is that of their coming."""
        # The same row may come twice, from a lane job that died and from the next one.
        work = Work(work.batch_id, next(self._numbers), *work[2:])
        if work.cache_salt and work.prefix:
            work = work._replace(prefix=_salted(work.prefix, work.cache_salt))
        row = QueuedRow(work)
        self._waiting[_key(row.work)] = row
        self._line.add(row.work)
        if self.is_small(row.work):
            self._small.add(row.work)
        if work.ends_batch:
            self.complete(work.batch_id)
        return row

    def complete(self, batch_id: str) -> None:
        """Say that no row of the batch comes after those that wait here."""
        self._line.complete(batch_id)

    def admit(self, now: float) -> Iterator[QueuedRow]:
        """The rows that enter now, in their order; each has its rank."""
        self._forget_given_up()
        self._hurry(now)
        if not self.inside:
            # The time without rows says nothing about rates.
            self._row_rate.skip(now)
            self._token_rate.skip(now)
        if self._capacity.is_one_step:
            # Hundreds of others may have a place at this moment.
            yield from self._admit_to_spare_seats(now)
        while len(self._line) and self._has_place():
            work, charged = self._line.pop(now)
            self._small.remove(work.batch_id, {work.number})
            self._inside += 1
            self._preparing += 1
            yield self._enter(work, charged)
        yield from self._admit_to_spare_seats(now)

    def _admit_to_spare_seats(self, now: float) -> Iterator[QueuedRow]:
        while len(self._small) and self._inside_spare < self._capacity.spare_seats:
            work, charged = self._small.pop(now)
            self._line.remove(work.batch_id, {work.number})
            self._inside_spare += 1
            yield self._enter(work, charged, is_spare=True)

    def enter_live(self, work: Work) -> QueuedRow:
        """A live call, which enters at once and goes before all rows of batches."""
        return QueuedRow(work, rank=next(self._ranks) - 2 * FIRST, is_live=True)

    def is_small(self, work: Work) -> bool:
        """Whether a row is of a small batch: its rows may have spare seats, and go first."""
        return work.batch_rows <= self._capacity.spare_seats

    def seat(self, row: QueuedRow) -> None:
        """A sequence of the row has a seat."""
        row.seated += 1
        if row.seated == 1 and not row.is_spare and not row.is_live:
            self._preparing -= 1

    def expected_output(self, row: QueuedRow, *, prompt_tokens: int, max_tokens: int) -> float:
        """How long one of the row's answers will be, in tokens."""
        work = row.work
        if row.is_live:
            return min(_LIVE_ANSWER, max_tokens)
        average = self._line.lengths.average(work.batch_id, work.kind)
        if average is not None:
            return min(average, max_tokens)
        # What was predicted for the whole row.
        predicted = min(max(1.0, work.tokens - prompt_tokens), max_tokens)
        longest = self._line.lengths.longest(work.batch_id)
        return predicted if longest is None else min(predicted, _LONGER * max(1, longest))

    def note_step(self, now: float) -> None:
        """The engine has ended a step."""
        is_short = now - self._stepped_at < SHORT_STEP_SECONDS
        self._stepped_at = now
        changed = self._step_seconds * (1 + _CHANGE if is_short else 1 - _CHANGE)
        self._step_seconds = min(MOST_STEP_SECONDS, max(STEP_SECONDS, changed))

    def leave(self, row: QueuedRow, now: float) -> None:
        """The row is done, or does not want to run any more."""
        if row.is_live:
            return
        if row.rank is None:
            del self._waiting[_key(row.work)]
            self._given_up.setdefault(row.work.batch_id, set()).add(row.work.number)
            return
        if row.is_spare:
            self._inside_spare -= 1
        else:
            self._inside -= 1
            self._preparing -= not row.seated
        self._line.shares.end(row.work.tenant, row.charged)
        self._row_rate.note(1, now)

    def learn(self, row: QueuedRow, usage: SliceUsage, now: float) -> None:
        """A row has an answer: charge what it took instead of what was predicted."""
        work = row.work
        tokens = usage.input_tokens - usage.cached_tokens + usage.output_tokens
        self._line.shares.charge(work.tenant, tokens - row.charged)
        self._line.lengths.note(work.batch_id, work.kind, usage.output_tokens // max(1, row.seated))
        self._token_rate.note(tokens, now)

    def answered(self) -> dict[str, RowsInEngine]:
        """How many rows of the last batches have an answer, and how long these are."""
        return {
            batch_id: RowsInEngine(answered, tokens)
            for batch_id, answered, tokens in self._line.lengths.latest(TOLD_BATCHES)
        }

    def _forget_given_up(self) -> None:
        for batch_id, numbers in self._given_up.items():
            self._line.remove(batch_id, numbers)
            self._small.remove(batch_id, numbers)
        self._given_up.clear()

    def _hurry(self, now: float) -> None:
        """Let batches go first whose windows close soon."""
        # A clock that was set back says nothing about the last look.
        if 0 <= now - self._looked_at < _LOOK_SECONDS:
            return
        self._looked_at = now
        waiting = {row.work.batch_id: row.work for row in self._waiting.values()}
        self.earliest_end = min((work.expires_at for work in waiting.values()), default=inf)
        deadlines = [
            Deadline(work.batch_id, work.expires_at, 0.0, work.tenant, work.weight)
            for work in waiting.values()
        ]
        # How much is left of a batch is not known here.
        first = urgent(deadlines, now=now, tokens_per_second=0)
        self._line.hurry(first, tokens_per_second=self._token_rate.per_second)

    def _enter(self, work: Work, charged: float, *, is_spare: bool = False) -> QueuedRow:
        row = self._waiting.pop(_key(work))
        row.charged, row.is_spare = charged, is_spare
        self._line.shares.begin(work.tenant, charged)
        row.rank = next(self._ranks) - (FIRST if self.is_small(work) else 0)
        return row

    def _has_place(self) -> bool:
        if self._capacity.is_one_step:
            return self._inside < max(MIN_ROWS, self._step_seconds * self._row_rate.per_second)
        return self._preparing < max(_MIN_AHEAD, self._capacity.seats // _AHEAD_PART)


class Rate:
    """How many of something there are in a second, of late."""

    def __init__(self, seconds: float) -> None:
        """What was `seconds` ago counts about a third of what is now."""
        self._memory = seconds
        self._count = self._seconds = 0.0
        self._at: float | None = None

    @property
    def per_second(self) -> float:
        return self._count / self._seconds if self._seconds else 0.0

    def skip(self, now: float) -> None:
        """Leave out the time since the last note."""
        self._at = now

    def note(self, count: float, now: float) -> None:
        """There were so many more since the last note."""
        passed = max(0.0, now - self._at) if self._at is not None else 0.0
        kept = exp(-passed / self._memory)
        self._count = self._count * kept + count
        self._seconds = self._seconds * kept + passed
        self._at = now


def _salted(prefix: Iterable[int], salt: str) -> tuple[int, ...]:
    return tuple(hash((salt, block)) for block in prefix)


def _key(work: Work) -> tuple[str, int]:
    return work.batch_id, work.number
