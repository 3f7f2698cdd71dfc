"""The way of a row into vLLM and out again: through the engine's queue, and to a seat."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from collections.abc import Sequence as Sequence_
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple, TypeVar

import structlog

from shared.errors import BatchyardError
from shared.ordering.work import Work
from shared.rows_in_engine import RowsInEngine, together
from shared.slices import SliceUsage
from worker.engine_ledger import Computed, EngineLedger, TokenWeights, Uses
from worker.engine_numbers import CoreNumbers
from worker.engine_queue import EngineQueue, QueuedRow
from worker.engine_seats import Capacity, Seats, Sequence, StepOutput
from worker.few_at_a_time import Few
from worker.giving_back import GivingBack
from worker.live_control import Goals, LiveControl, Yielding
from worker.step_limit import FREE, Group, headers

log = structlog.get_logger()

T = TypeVar("T")


class WithdrawnError(BatchyardError):
    """The row was withdrawn before it had a seat."""


class GivenBackError(WithdrawnError):
    """It was withdrawn so that another engine answers it: people have this one."""


@dataclass(eq=False, slots=True)
class Guest:
    """A row that is inside, and the task that runs it."""

    row: QueuedRow
    task: "asyncio.Task[object] | None"
    #: What it begins with.
    group: Group | None = None
    #: Why it leaves, if it was withdrawn.
    withdrawn: WithdrawnError | None = None
    sequences: set[str] = field(default_factory=set)

    @property
    def had_seat(self) -> bool:
        """Whether vLLM has seen any of it."""
        return self.row.seated > 0


#: The row on whose behalf the running task calls vLLM.
_guest: ContextVar[Guest | None] = ContextVar("_guest", default=None)


class Seat(NamedTuple):
    """What a sequence of a row takes with it into vLLM."""

    row: QueuedRow
    #: For vLLM's core, among the headers of the request.
    told: dict[str, str]


class Entrance:
    """Belongs to the event loop of the replica."""

    def __init__(
        self,
        capacity: Capacity,
        clock: Callable[[], float] | None = None,
        goals: Goals | None = None,
        yielding: Yielding | None = None,
        few: Few | None = None,
    ) -> None:
        """With `goals`, batches give way to live calls as far as these need it.

        A `clock` tells both times, which are otherwise those of the machine: Unix seconds, which
        windows end by, and those of a clock that nobody sets, which says how long ago things were.
        """
        self._control = None
        if goals is not None:
            self._control = LiveControl(
                capacity.seats,
                goals,
                yielding=yielding or Yielding(),
                kv_tokens=capacity.kv_tokens,
            )
        self._gives_way = True
        self._giving_back = GivingBack(capacity.seats)
        #: How many live calls have seats that no batch gets, and how many may have a seat at once.
        self.live_seats = capacity.live_seats
        self.live_places = capacity.seats + capacity.live_seats
        #: When each sequence of a live call was last heard of, and whether it has a token.
        self._heard: dict[str, tuple[float, bool]] = {}
        self._queue = EngineQueue(capacity)
        self._ledger = EngineLedger(TokenWeights(), time.monotonic())
        #: Of sequences that have no token yet: those of their prompts that have to be computed.
        self._prompts: dict[str, int] = {}
        self._seats = Seats(capacity)
        self._clock = clock or time.time
        self._steady = clock or time.monotonic
        #: Rows that wait for their turn, and sequences that wait for a seat.
        self._turns: dict[QueuedRow, asyncio.Future[None]] = {}
        self._places: dict[str, asyncio.Future[Group | None]] = {}
        self._groups = itertools.count()
        self._guests: set[Guest] = set()
        self._is_due = False
        #: Where a row takes one step, hundreds leave at a time: so many enter, or are given seats,
        #: before those of small batches have their turn.
        self._few = (few or Few()) if capacity.is_one_step else None
        #: Whether the replica takes no more rows.
        self._is_closed = False

    @property
    def rows(self) -> int:
        """How many rows wait or are inside."""
        return len(self._turns) + len(self._guests)

    @property
    def has_batches(self) -> bool:
        """Whether rows of batches wait or are inside: live calls may leave them one seat."""
        return self.rows > 0

    @property
    def is_for_people(self) -> bool:
        """Whether live calls leave rows of batches next to nothing."""
        return self._giving_back.has_begun

    @property
    def seated(self) -> int:
        """How many sequences vLLM has."""
        return self._seats.in_use

    @property
    def step_prompt_tokens(self) -> int | None:
        """How many tokens of prompts of batches a step may have beside live calls, or FREE.

        None where the model takes no live calls.
        """
        if self._control is None:
            return None
        if not self._gives_way:
            return FREE
        return int(min(self._control.prompt_tokens, self._seats.step_tokens))

    def is_small(self, work: Work) -> bool:
        """Whether a row is of a small batch, which goes before others."""
        return self._queue.is_small(work)

    def group_of(self, works: Iterable[Work]) -> Group | None:
        """What rows of small batches that come together begin as; None where each goes by itself.

        Where a row takes one step, those that miss it would wait for one of others. While more than
        one call has such rows, they make up steps of their own, and would only wait.
        """
        if self._few is None or self._few.hurries > 1:
            return None
        rows = sum(map(self.is_small, works))
        return Group(next(self._groups), rows) if rows > 1 else None

    @asynccontextmanager
    async def entered(self, work: Work, group: Group | None = None) -> AsyncIterator[Guest]:
        """Wait until the row may be prepared; it is inside while the context is open.

        The row begins with the others of its `group`. Raises WithdrawnError.
        """
        if self._is_closed:
            raise WithdrawnError("The replica takes no more rows.")
        row = self._queue.add(work)
        turn = self._turns[row] = asyncio.get_running_loop().create_future()
        guest = Guest(row, asyncio.current_task(), group)
        if self._goes_at_once(row):
            self._let_in()
        else:
            self._admit_soon()
        try:
            await turn
            if self._is_closed:
                raise WithdrawnError("The row was withdrawn.")
            self._guests.add(guest)
            _guest.set(guest)
            yield guest
        except asyncio.CancelledError:
            if guest.withdrawn is not None:
                raise guest.withdrawn from None
            raise
        finally:
            _guest.set(None)
            self._guests.discard(guest)
            self._turns.pop(row, None)
            self.release(guest.sequences)
            self._ledger.forget(row, time.monotonic())
            self._queue.leave(row, self._clock())
            self._admit_soon()

    @contextmanager
    def entered_live(self, tenant: str, cache_salt: str) -> Iterator[Guest]:
        """Let what is called meanwhile be a live call: it goes before all rows of batches."""
        work = Work("", 0, tenant, 0, 0.0, 0.0, 0.0, cache_salt=cache_salt)
        guest = Guest(self._queue.enter_live(work), asyncio.current_task())
        token = _guest.set(guest)
        try:
            yield guest
        finally:
            _guest.reset(token)
            self.release(guest.sequences)

    async def seat(self, id_: str, *, prompt_tokens: int, max_tokens: int) -> Seat | None:
        """Wait for a seat for a sequence of the row that the running task belongs to.

        None for what is no row of a batch, which has a seat at once.
        """
        guest = _guest.get()
        if guest is None or guest.row.rank is None:
            self._enter(None, id_, prompt_tokens)
            return None
        row, rank = guest.row, guest.row.rank
        output_tokens = self._queue.expected_output(
            row, prompt_tokens=prompt_tokens, max_tokens=max_tokens
        )
        guest.sequences.add(id_)
        cached_tokens = max(0.0, row.work.tokens - row.charged)
        self._seats.ask(
            Sequence(
                id_,
                rank,
                row.is_spare,
                prompt_tokens,
                output_tokens,
                cached_tokens,
                row.is_live,
                max_tokens,
            )
        )
        if row.is_live and self._control is not None:
            self._heard[id_] = self._steady(), False
            self._control.begin(id_, self._steady(), prompt_tokens + output_tokens)
        place = self._places[id_] = asyncio.get_running_loop().create_future()
        if self._goes_at_once(row):
            self._seat_next()
        else:
            self._admit_soon()
        try:
            group = await place or guest.group
        finally:
            self._places.pop(id_, None)
        self._queue.seat(row)
        whose = None if row.is_live else row
        self._enter(whose, id_, round(max(0.0, prompt_tokens - cached_tokens)))
        self._admit_soon()
        return Seat(row, headers(self.step_prompt_tokens, is_live=row.is_live, group=group))

    def release(self, ids: Iterable[str]) -> None:
        """These sequences are done, or given up."""
        now = time.monotonic()
        for id_ in ids:
            self._seats.leave(id_)
            self._forget(id_)
            self._leave(id_, now)
        self._admit_soon()

    def withdraw(self, batch_id: str) -> None:
        """Let no row of the batch have a seat that has none."""
        self._withdraw(lambda row: row.work.batch_id == batch_id and not row.seated)

    def know_free(self, replicas: int) -> None:
        """Know how many other replicas live calls leave to batches: rows that wait may go there."""
        self._giving_back.know_free(replicas, self._steady())

    def close(self) -> int:
        """Let no row have a seat that has none, now and later; returns how many are withdrawn."""
        self._is_closed = True
        return self._withdraw(lambda row: not row.seated)

    def give_back(self) -> int:
        """Withdraw all rows, also those that have a seat; returns how many."""
        return self._withdraw(lambda _: True)

    def complete(self, batch_id: str) -> None:
        """No row of the batch comes after those that are here."""
        self._queue.complete(batch_id)

    def learn(self, guest: Guest, usage: SliceUsage) -> None:
        """A row that was inside has an answer."""
        self._queue.learn(guest.row, usage, self._clock())

    def settle(self, guest: Guest) -> float:
        """The engine's seconds of a row that has its answer. Nobody else has them."""
        return self._ledger.settle(guest.row, time.monotonic())

    def rows_of_batches(self) -> dict[str, RowsInEngine]:
        """How far the rows of each batch are: of those with rows inside, and of the last ones."""
        found = self._queue.answered()
        for guest in self._guests:
            if guest.had_seat:
                batch_id = guest.row.work.batch_id
                made = max(map(self._seats.made, guest.sequences), default=0)
                known = found.get(batch_id, RowsInEngine())
                found[batch_id] = together([known, RowsInEngine(inside=1, made=made)])
        return found

    def uses(self, now: float) -> Uses:
        """All of the engine's seconds from its start to `now` (monotonic), by their use."""
        return self._ledger.uses(now)

    def note(
        self,
        kv_usage: float | None,
        outputs: Sequence_[StepOutput],
        numbers: CoreNumbers | None = None,
    ) -> None:
        """The engine has ended a step; `numbers` are what its core has counted so far."""
        now = time.monotonic()
        self._seats.note(kv_usage, outputs)
        self._queue.note_step(self._clock())
        if self._control is not None and numbers is not None:
            self._control.note_core(numbers)
        if self._heard:
            self._learn_times(outputs)
        self._ledger.step(map(self._computed, outputs), now)
        for output in outputs:
            if output.is_last:
                self._leave(output.id, now)
        self._admit_soon()

    def _withdraw(
        self, is_meant: Callable[[QueuedRow], bool], why: type[WithdrawnError] = WithdrawnError
    ) -> int:
        count = 0
        for row, turn in self._turns.items():
            if is_meant(row) and not turn.done():
                turn.set_exception(why("The row was withdrawn."))
                count += 1
        for guest in self._guests:
            if is_meant(guest.row) and guest.task and guest.withdrawn is None:
                guest.withdrawn = why("The row was withdrawn.")
                guest.task.cancel()
                count += 1
        return count

    def _enter(self, row: QueuedRow | None, id_: str, prompt_tokens: int) -> None:
        self._prompts[id_] = prompt_tokens
        self._ledger.enter(row, id_, time.monotonic())

    def _leave(self, id_: str, now: float) -> None:
        self._prompts.pop(id_, None)
        self._ledger.leave(id_, now)

    def _computed(self, output: StepOutput) -> Computed:
        """Its prompt was computed by the step that made its first token, or in those before it."""
        expected = self._prompts.pop(output.id, 0)
        known = output.prompt_tokens
        return Computed(output.id, expected if known is None else known, output.tokens)

    def _admit_soon(self) -> None:
        """Let rows enter when all that happens at this moment has happened: many leave together."""
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._admit)

    def _learn_times(self, steps: Iterable[StepOutput]) -> None:
        assert self._control is not None  # noqa: S101  # only it has somebody heard
        now = self._steady()
        for step in steps:
            if step.id not in self._heard or not step.tokens:
                continue
            before, has_token = self._heard[step.id]
            if has_token:
                self._control.note_next((now - before) / step.tokens)
            else:
                self._control.note_first(now - before)
            self._heard[step.id] = now, True
            if step.is_last:
                self._forget(step.id)

    def _forget(self, id_: str) -> None:
        if self._control is not None and self._heard.pop(id_, None) is not None:
            self._control.end(id_, self._steady())

    def _admit(self) -> None:
        self._is_due = False
        if self._control is not None:
            self._yield(self._control, self._steady())
        self._seat_next()
        self._let_in()

    def _let_in(self) -> None:
        """Let rows in as far as there is place."""
        for row in self._first_few(self._queue.admit(self._clock())):
            _let_go(self._turns.pop(row), None)

    def _first_few(self, those: Iterator[T]) -> list[T]:
        """The first of them; the next ones have their turn soon."""
        count = None if self._few is None else self._few.count
        few = list(islice(those, count))
        if len(few) == count:
            self._admit_soon()
        return few

    def _goes_at_once(self, row: QueuedRow) -> bool:
        """Whether a row waits for no other that comes at this moment.

        Each round of the loop does the work of other rows, so it is to wait for as few rounds as
        possible.
        """
        return self._few is not None and self._queue.is_small(row.work)

    def _seat_next(self) -> None:
        """Let those in that have a seat now; rows that begin together know that they do."""
        given = self._first_few(self._seats.give())
        together = {one.id for one in given if self._seats.begins_together(one)}
        group = Group(next(self._groups), len(together)) if len(together) > 1 else None
        for sequence in given:
            place = self._places.get(sequence.id)
            _let_go(place, group if sequence.id in together else None)

    def _yield(self, control: LiveControl, now: float) -> None:
        """Let batches have as much as live calls leave them, or all before a window closes."""
        gives_way = control.gives_way(self._queue.earliest_end, self._clock())
        if gives_way != self._gives_way:
            self._gives_way = gives_way
            log.info("engine.gives_way", who="batches" if gives_way else "live calls")
        limit = control.limit(self._seats.of_batches, now) if gives_way else control.seats
        self._giving_back.see(limit, now)
        if self._giving_back.is_due(now):
            self._withdraw(lambda row: not row.seated, GivenBackError)
        if gives_way:
            self._seats.yield_to_live(
                limit=limit,
                reserve=control.reserve(now),
                kv_reserve=control.kv_reserve(now),
                is_live_near=not control.is_quiet(now),
            )
        else:
            self._seats.yield_no_more()


def _let_go(waiter: asyncio.Future[T] | None, what: T) -> None:
    # Who waited may have been cancelled a moment ago.
    if waiter is not None and not waiter.done():
        waiter.set_result(what)
