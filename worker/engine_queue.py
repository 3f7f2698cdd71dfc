"""The rows in front of vLLM: in which order they enter, and how many may be inside. Pure.

vLLM takes a row that waits only when a seat is free, and never takes a seat back for it. So what
waits, waits here, where the order may change until the last moment, and some seats and a part of
the KV cache stay free for rows of small batches.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from shared.ordering.deadlines import Deadline, urgent
from shared.ordering.line import Line
from shared.ordering.shares import Shares
from shared.ordering.work import Work
from shared.slices import SliceUsage

#: A model that gives vectors has this many seconds of rows inside. What comes then waits for one
#: step at most, and no step may be long.
STEP_SECONDS = 0.1
#: It has this many inside at least, as one row after another would cost a step each.
MIN_ROWS = 8
#: The weight of one step in the measured time of a row.
_WEIGHT = 0.2
#: How often deadlines are looked at, in seconds.
_LOOK_SECONDS = 1.0
#: Ranks of rows that may use spare seats are lower by this than all others.
_FIRST = 1 << 40


class EngineLoad(NamedTuple):
    """What vLLM says of itself after a step."""

    #: Requests with a seat, and without one.
    running: int = 0
    waiting: int = 0
    #: The part of the KV cache that they use.
    kv_usage: float = 0.0


class Capacity(NamedTuple):
    """How much of an engine rows may use."""

    #: Rows that run at once.
    seats: int
    #: The seats beyond them, and the part of the KV cache, that stay free for small batches.
    spare_seats: int
    spare_kv: float
    #: Whether a row takes one step, as for vectors.
    is_one_step: bool = False


@dataclass(eq=False, slots=True)
class QueuedRow:
    """A row that waits, or that is inside as soon as it has a rank."""

    work: Work
    charged: float = 0.0
    #: vLLM's priority; the lower goes first.
    rank: int | None = None
    is_spare: bool = False


class EngineQueue:
    """One engine's rows. Times are Unix seconds."""

    def __init__(self, capacity: Capacity) -> None:
        self._capacity = capacity
        self._waiting: dict[tuple[str, int], QueuedRow] = {}
        self._line = Line(Shares())
        #: The same rows again, as far as they may use spare seats.
        self._small = Line(Shares())
        #: Rows that do not wait any more, but are still in the lines: they leave together.
        self._given_up: dict[str, set[int]] = {}
        self._numbers = itertools.count()
        self._ranks = itertools.count(1)
        self._inside = self._inside_spare = 0
        self._load = EngineLoad()
        #: How many rows beyond the seats are inside, so that no seat is empty between two rows.
        self._ahead = max(1, capacity.seats // 10)
        self._row_seconds = STEP_SECONDS / MIN_ROWS
        self._noted_at = 0.0
        self._looked_at = 0.0
        self._left_since = 0

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def inside(self) -> int:
        return self._inside + self._inside_spare

    def add(self, work: Work) -> QueuedRow:
        """Let a row wait; the order among the rows of a batch is that of their coming."""
        # The same row may come twice, from a lane job that died and from the next one.
        row = QueuedRow(work._replace(number=next(self._numbers)))
        self._waiting[_key(row.work)] = row
        self._line.add(row.work)
        if self._may_use_spare(row.work):
            self._small.add(row.work)
        return row

    def leave(self, row: QueuedRow, now: float) -> None:
        """The row is done, or does not want to run any more."""
        if row.rank is None:
            del self._waiting[_key(row.work)]
            self._given_up.setdefault(row.work.batch_id, set()).add(row.work.number)
            return
        if row.is_spare:
            self._inside_spare -= 1
        else:
            self._inside -= 1
        self._left_since += 1
        if not self.inside:
            # It says nothing of itself until it has rows again.
            self._load = EngineLoad()
            self._measure(now)

    def note(self, load: EngineLoad, now: float) -> None:
        """The engine has ended a step."""
        self._load = load
        self._measure(now)
        if not self.waiting:
            return
        running = load.running - self._inside_spare
        if load.waiting or running > self._capacity.seats:
            self._ahead = max(1, self._ahead - 1)
        elif running < self._capacity.seats:
            self._ahead = min(self._ahead + 1, max(1, self._capacity.seats // 4))

    def admit(self, now: float) -> Iterator[QueuedRow]:
        """The rows that enter now, in their order; each has its rank."""
        self._forget_given_up()
        self._hurry(now)
        if not self.inside:
            self._noted_at = now
        while len(self._line) and self._has_seat():
            work, charged = self._line.pop(now)
            self._small.remove(work.batch_id, {work.number})
            self._inside += 1
            yield self._enter(work, charged)
        while len(self._small) and self._inside_spare < self._capacity.spare_seats:
            work, charged = self._small.pop(now)
            self._line.remove(work.batch_id, {work.number})
            self._line.shares.charge(work.tenant, charged)
            self._inside_spare += 1
            yield self._enter(work, charged, is_spare=True)

    def learn(self, row: QueuedRow, usage: SliceUsage) -> None:
        """A row has an answer: charge what it took instead of what was predicted."""
        work = row.work
        tokens = usage.input_tokens - usage.cached_tokens + usage.output_tokens
        self._line.shares.charge(work.tenant, tokens - row.charged)
        self._line.lengths.note(work.batch_id, work.kind, usage.output_tokens)

    def _forget_given_up(self) -> None:
        for batch_id, numbers in self._given_up.items():
            self._line.remove(batch_id, numbers)
            self._small.remove(batch_id, numbers)
        self._given_up.clear()

    def _hurry(self, now: float) -> None:
        """Let batches go first whose windows close soon."""
        if now - self._looked_at < _LOOK_SECONDS:
            return
        self._looked_at = now
        waiting = {row.work.batch_id: row.work for row in self._waiting.values()}
        deadlines = [Deadline(work.batch_id, work.expires_at, 0.0) for work in waiting.values()]
        # How much is left of a batch is not known here.
        self._line.hurry(urgent(deadlines, now=now, tokens_per_second=0), tokens_per_second=0)

    def _enter(self, work: Work, charged: float, *, is_spare: bool = False) -> QueuedRow:
        row = self._waiting.pop(_key(work))
        row.charged, row.is_spare = charged, is_spare
        row.rank = next(self._ranks) - (_FIRST if self._may_use_spare(work) else 0)
        return row

    def _may_use_spare(self, work: Work) -> bool:
        return work.batch_rows <= self._capacity.spare_seats

    def _has_seat(self) -> bool:
        if not self.inside:
            return True
        if self._load.kv_usage > 1 - self._capacity.spare_kv:
            return False
        if self._capacity.is_one_step:
            rows = int(STEP_SECONDS / self._row_seconds)
            return self._inside < min(max(MIN_ROWS, rows), self._capacity.seats)
        return self._inside < self._capacity.seats + self._ahead

    def _measure(self, now: float) -> None:
        if self._left_since:
            seconds = (now - self._noted_at) / self._left_since
            self._row_seconds += _WEIGHT * (seconds - self._row_seconds)
            self._left_since = 0
        self._noted_at = now


def _key(work: Work) -> tuple[str, int]:
    return work.batch_id, work.number
