"""A lane with one engine in virtual time, which the policy of the product feeds.

The dispatcher's ready list, the claims and the order in front of the engine are the product's own
code. The engine is a model with seats, KV blocks, a prefix cache and the rates of a real one.
"""

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import NamedTuple

from dispatcher.ready_list import LaneNow, exhausted, ready_list, slices_per_batch
from shared.ordering.deadlines import urgent
from shared.ordering.line import Line
from shared.ordering.prefix_cache import PrefixCache
from shared.ordering.shares import Shares
from shared.ordering.work import Work
from shared.slices import ReadySlice

DAY = 86_400.0
_BLOCK_TOKENS = 16
#: Rows that a slice holds at most, and the predicted tokens.
_SLICE_ROWS, _SLICE_TOKENS = 128, 32_768
#: A prompt's shared part is looked at where it is more than this of the row's tokens.
_WORTH = 0.25
#: How often the ready list is put in order while no batch comes and this part of it is left.
_LOOK_SECONDS, _FULL_ENOUGH = 30.0, 0.75
#: How often the engine's queue looks at deadlines.
_HURRY_SECONDS = 1.0
#: If more batches wait, the dispatcher looks at those whose windows close next and at the oldest of
#: each tenant, so many of both together.
_BATCHES = 500
#: Seconds that the measured rate covers.
_RATE_SECONDS = 30.0


class EngineModel(NamedTuple):
    """One engine: 300 tokens in and 128 out at 256 seats are about 85 rows a second."""

    seats: int = 256
    kv_tokens: int = 400_000
    prefill_tokens_per_second: float = 60_000.0
    #: Seconds of a decode step: a constant part, and one for each row in it.
    step_seconds: float = 0.008
    row_seconds: float = 0.000_03

    def step(self, rows: int) -> float:
        return self.step_seconds + self.row_seconds * rows


class Row(NamedTuple):
    """A request; `prefix` names the text that its first `prefix_tokens` share with others."""

    prefix: int
    prefix_tokens: int
    prompt_tokens: int
    output_tokens: int

    @property
    def blocks(self) -> tuple[int, ...]:
        first = self.prefix << 16
        return tuple(range(first, first + self.prefix_tokens // _BLOCK_TOKENS))


def exactly(row: Row) -> float:
    """Predict what comes true."""
    return row.output_tokens


class _Slice(NamedTuple):
    rows: range
    tokens: float


@dataclass
class Batch:
    """A batch of a trace; times are seconds."""

    id: str
    tenant: str
    arrives: float
    rows: Sequence[Row]
    window: float = DAY
    priority: int = 5
    #: Tokens of output that are predicted of a row.
    predicted: Callable[[Row], float] = exactly
    left: int = field(init=False)
    ended: float = field(init=False, default=math.inf)
    #: The first slice that is not claimed, and when one last was.
    next_slice: int = field(init=False, default=0)
    claimed_at: float = field(init=False, default=0.0)
    #: When the first one was.
    began_at: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        self.left = len(self.rows)
        self.slices = list(self._cut())

    @property
    def deadline(self) -> float:
        return self.arrives + self.window

    def tokens(self, row: Row) -> float:
        return row.prompt_tokens + self.predicted(row)

    def _cut(self) -> Iterable[_Slice]:
        first, tokens = 0, 0.0
        for number, row in enumerate(self.rows):
            more = self.tokens(row)
            if number > first and (number - first == _SLICE_ROWS or tokens + more > _SLICE_TOKENS):
                yield _Slice(range(first, number), tokens)
                first, tokens = number, 0.0
            tokens += more
        yield _Slice(range(first, len(self.rows)), tokens)


class _Running(NamedTuple):
    finishes_at: float
    number: int
    batch: Batch
    row: Row
    #: Its number in the batch.
    place: int
    charged: float
    cached: int


class Fleet:
    """A dispatcher, a lane job and an engine.

    `is_blind` takes the rows of what is claimed as they come, whatever their prompts and lengths.
    `claimed` is how many engines full of rows may wait in front of the engine.
    """

    def __init__(self, model: EngineModel, *, is_blind: bool = False, claimed: float = 2.0) -> None:
        self._model = model
        self._is_blind = is_blind
        self._most_claimed = int(claimed * model.seats)
        blocks = model.kv_tokens // _BLOCK_TOKENS
        self._cache = PrefixCache(blocks)
        self._rows = Line(Shares(), PrefixCache(blocks), tokens_per_block=_BLOCK_TOKENS)
        #: What the dispatcher knows: all batches that run, and those with slices to claim.
        self._batches: dict[str, Batch] = {}
        self._waiting: dict[str, Batch] = {}
        self._served = Shares()
        self._ready: list[ReadySlice] = []
        self._ordered_at = self._hurried_at = -math.inf
        self._ready_length = 0
        self._running: list[_Running] = []
        self._numbers = itertools.count()
        self._kv_used = 0
        #: Tokens that each row in the engine would have decoded, had it been there from the start.
        self._decoded = 0.0
        self._prefill_seconds = 0.0
        self._rate, self._rate_at, self._rate_tokens = 0.0, 0.0, 0.0
        self.now = 0.0
        self.idle_seconds = 0.0
        self.rows_done = 0
        #: What the engine computed for each tenant: prompt tokens that were not cached, and output.
        self.computed: defaultdict[str, float] = defaultdict(float)
        self.done_at: list[float] = []

    def run(self, batches: Iterable[Batch], *, until: float = math.inf) -> None:
        """Submit each batch when it arrives; run until all are over, or until a time."""
        for batch in sorted(batches, key=lambda batch: batch.arrives):
            if batch.arrives >= until:
                break
            self._pass(batch.arrives)
            self._submit(batch)
        self._pass(until)

    def _submit(self, batch: Batch) -> None:
        tenants = {other.tenant for other in self._waiting.values()}
        if batch.tenant not in tenants:
            self._served.join(batch.tenant, tenants)
        self._batches[batch.id] = self._waiting[batch.id] = batch
        self._ordered_at = -math.inf

    def _pass(self, until: float) -> None:
        while self.now < until:
            self._fill()
            if not self._running:
                if until < math.inf:
                    self.idle_seconds += until - self.now
                    self.now = until
                return
            step = self._model.step(len(self._running))
            first = self._running[0]
            ends = self.now + self._prefill_seconds + (first.finishes_at - self._decoded) * step
            if ends > until:
                prefilled = min(until - self.now, self._prefill_seconds)
                self._prefill_seconds -= prefilled
                self._decoded += (until - self.now - prefilled) / step
                self.now = until
                return
            self.now, self._prefill_seconds, self._decoded = ends, 0.0, first.finishes_at
            self._finish(heappop(self._running))

    def _fill(self) -> None:
        while len(self._running) < self._model.seats:
            self._claim()
            self._hurry()
            if not len(self._rows):
                return
            work = self._rows.peek(self.now)
            batch = self._batches[work.batch_id]
            row = batch.rows[work.number]
            kv_tokens = row.prompt_tokens + row.output_tokens
            if self._running and self._kv_used + kv_tokens > self._model.kv_tokens:
                return
            _, charged = self._rows.pop(self.now)
            cached = self._cache.match(row.blocks) * _BLOCK_TOKENS
            self._cache.add(row.blocks)
            self._kv_used += kv_tokens
            uncached = row.prompt_tokens - cached
            self._prefill_seconds += uncached / self._model.prefill_tokens_per_second
            finishes_at = self._decoded + row.output_tokens
            heappush(
                self._running,
                _Running(
                    finishes_at, next(self._numbers), batch, row, work.number, charged, cached
                ),
            )

    def _claim(self) -> None:
        """The lane job claims the ready list's first slices."""
        while self._waiting and len(self._rows) < self._most_claimed:
            is_short = len(self._ready) < self._ready_length * _FULL_ENOUGH
            if not self._ready or is_short or self.now - self._ordered_at >= _LOOK_SECONDS:
                self._order()
            ready = self._ready.pop(0)
            batch = self._batches[ready.batch_id]
            self._served.charge(batch.tenant, ready.tokens)
            batch.claimed_at = self.now
            batch.began_at = batch.began_at or self.now
            batch.next_slice = ready.index + 1
            rows = batch.slices[ready.index].rows
            for number in rows:
                self._rows.add(self._work(batch, number))
            if batch.next_slice == len(batch.slices):
                del self._waiting[batch.id]
                if not self._is_blind:
                    self._rows.complete(batch.id)

    def _order(self) -> None:
        """The dispatcher puts the ready list in order."""
        self._ordered_at = self.now
        self._measure()
        used = {batch.tenant: self._served.of(batch.tenant) for batch in self._waiting.values()}
        lane = LaneNow(used, {}, self._rate)
        rows, depth = max(512, 2 * self._most_claimed), slices_per_batch(len(self._waiting))
        slices = [one for batch in self._to_choose_from() for one in _candidates(batch, depth)]
        while True:
            self._ready = ready_list(slices, lane, now=self.now, rows=rows)
            known = depth
            more, depth = exhausted(slices, self._ready, depth=depth)
            if not more:
                break
            for batch_id in more:
                slices += _candidates(self._waiting[batch_id], depth, known)
        self._ready_length = len(self._ready)

    def _hurry(self) -> None:
        """Let the engine's queue look at deadlines: what is left of a batch is not known there."""
        if self._is_blind or self.now - self._hurried_at < _HURRY_SECONDS:
            return
        self._hurried_at = self.now
        deadlines = [one._replace(tokens=0.0) for one in self._rows.deadlines()]
        first = urgent(deadlines, now=self.now, tokens_per_second=0)
        self._rows.hurry(first, tokens_per_second=self._rate)

    def _to_choose_from(self) -> list[Batch]:
        waiting = list(self._waiting.values())
        if len(waiting) <= _BATCHES:
            return waiting
        closing = sorted(waiting, key=lambda batch: batch.deadline)[: _BATCHES // 2]
        tenants: defaultdict[str, list[Batch]] = defaultdict(list)
        for batch in waiting:
            tenants[batch.tenant].append(batch)
        each = max(1, _BATCHES // 2 // len(tenants))
        oldest = [batch for batches in tenants.values() for batch in batches[:each]]
        return list({batch.id: batch for batch in (*closing, *oldest)}.values())

    def _measure(self) -> None:
        """The lane's tokens per second."""
        seconds = self.now - self._rate_at
        if seconds >= _RATE_SECONDS:
            tokens = math.fsum(self.computed.values())
            self._rate = (tokens - self._rate_tokens) / seconds
            self._rate_at, self._rate_tokens = self.now, tokens

    def _work(self, batch: Batch, number: int) -> Work:
        row = batch.rows[number]
        tokens = batch.tokens(row)
        is_known = not self._is_blind and row.prefix_tokens > _WORTH * tokens
        return Work(
            batch_id=batch.id,
            number=number,
            tenant=batch.tenant,
            priority=batch.priority,
            created_at=batch.arrives,
            expires_at=batch.deadline,
            tokens=tokens,
            prefix=row.blocks if is_known else (),
            kind=0 if self._is_blind else row.prefix,
        )

    def _finish(self, ended: _Running) -> None:
        batch, row = ended.batch, ended.row
        used = row.prompt_tokens - ended.cached + row.output_tokens
        self._kv_used -= row.prompt_tokens + row.output_tokens
        self.computed[batch.tenant] += used
        self.rows_done += 1
        self.done_at.append(self.now)
        self._rows.shares.charge(batch.tenant, used - ended.charged)
        # The commit of a slice corrects what its claim was charged; here each row does.
        self._served.charge(batch.tenant, used - batch.tokens(row))
        if not self._is_blind:
            self._rows.lengths.note(batch.id, row.prefix, row.output_tokens)
        batch.left -= 1
        if not batch.left:
            batch.ended = self.now
            del self._batches[batch.id]


def _candidates(batch: Batch, depth: int, known: int = 0) -> list[ReadySlice]:
    """The batch's next slices, as the dispatcher reads them."""
    first = batch.next_slice
    return [
        ReadySlice(
            batch_id=batch.id,
            index=index,
            tenant=batch.tenant,
            priority=batch.priority,
            created_at=int(batch.arrives),
            expires_at=int(batch.deadline),
            tokens=round(batch.slices[index].tokens),
            rows=len(batch.slices[index].rows),
            is_ready=False,
            rows_left=batch.left,
            claimed_at=int(batch.claimed_at),
        )
        for index in range(first + known, min(first + depth, len(batch.slices)))
    ]
