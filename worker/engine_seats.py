"""The sequences in vLLM: which may enter, so that seats and KV blocks stay free for some. Pure.

vLLM takes a sequence that waits only when a seat is free, and never takes a seat back for it. So
vLLM is given no more sequences than have a seat, and none that its KV cache is not expected to hold
to the end. One that outlives what was expected of it is expected to go on for a while. The seat of
one that may have two tokens more is given away already: whoever gets it is there in time.

A step with any prompt takes longer than one without: vLLM runs it piece by piece instead of as one
CUDA graph. So rows begin several steps' at a time, and the steps between have no prompts.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import NamedTuple

#: While a spare seat or that of a live call is in use, prompts of no more tokens than this begin at
#: a time besides. A step with many prompts takes several times as long as one without.
QUIET_PROMPT_TOKENS = 1024
#: Fewer begin where fewer keep the seats full, but as many as these.
LEAST_PROMPT_TOKENS = 256
#: What keeps the seats full is what a step needs whose rows end evenly. It takes two or three steps
#: from a seat to the first token, so as many begin beside a small batch, which is soon over, and
#: beside live calls. At other times those that wait catch up.
_SMALL_STEPS, _LIVE_STEPS, _STEPS = 2, 3, 4
#: It is known by the last rows: by as many as this part of the seats, so that other rows are soon
#: seen, and no fewer than these.
_ROWS_PART, _LEAST_ROWS = 4, 8
#: Beside live calls a step has so many times what it needs at most, and no less than these tokens.
_STEP_PART, _LEAST_STEP_TOKENS = 1.25, 128
#: At other times prompts of so many tokens may begin at a time in any case, and of no more than so
#: many steps: what comes next would wait for the rest of a crowd that comes at once. Its rows would
#: also end together, and all that follow them begin together, again and again.
CROWD_TOKENS = 2048
STEPS_OF_PROMPTS = 2
#: The same where rows take one step. vLLM computes one while the next one is scheduled, and one
#: more waits, so that it never idles.
STEPS_OF_VECTORS = 3
#: A seat is given away before it is free, when its row may have so many tokens more. vLLM schedules
#: the next step while one is computed, and what a step has made is known a while after its end.
_EARLY_TOKENS = 2
#: This part of the seats at most.
_EARLY_PART = 2
#: What prompts add to a step besides their tokens, as a part of its time: twice as much on a small
#: model and more, a tenth on one that fills its card. Neither loses much with this.
_OVERHEAD = 0.5
#: Rows begin every so many steps at most: this part of the answers' length. Half as many of the
#: seats are empty.
_MOST_STEPS_PART = 1 / 8
#: Rows of one length that began together end together, so that no seat is empty while they wait for
#: each other: this part of the answers' length, so many steps, and the prompts of one step at most.
_EQUAL_STEPS_PART, _MOST_EQUAL_STEPS = 1 / 4, 32
#: Whoever comes into a step with so many prompts waits for its end: it is made after so many steps
#: without a row of a small batch or a live call.
_LONE_STEPS = 500
#: As many rows as leave in these steps may be a few more.
_MORE = 1.25
#: Rows that begin in one step are as many as fit into it, or a few less. No more than this part of
#: them are waited for, so that they are soon together again.
_STEP_FILLED = 0.9
#: An answer that is longer than expected goes on by this part of its length.
_GROWTH = 0.25


class Capacity(NamedTuple):
    """How much of an engine rows may use."""

    #: Sequences that run at once.
    seats: int
    #: The seats beyond them, and the part of the KV cache, that stay free for small batches.
    spare_seats: int
    spare_kv: float
    #: Tokens that fit into the KV cache; 0 if there is none.
    kv_tokens: int = 0
    #: Whether a row takes one step, as for vectors.
    is_one_step: bool = False
    #: Tokens that one step computes; 0 if nobody knows.
    step_tokens: int = 0
    #: The seats beyond the others that stay free for live calls.
    live_seats: int = 0

    @property
    def all_seats(self) -> int:
        """How many sequences vLLM runs at once."""
        return self.seats + self.spare_seats + self.live_seats


class Sequence(NamedTuple):
    """One prompt with one answer. A row has one or more."""

    id: str
    #: vLLM's priority; the lower goes first.
    rank: int
    #: Whether it may have a spare seat.
    is_spare: bool
    prompt_tokens: int
    #: Expected of its answer.
    output_tokens: float
    #: Those of the prompt that the prefix cache is expected to have.
    cached_tokens: float = 0.0
    #: Whether somebody waits for it, so that it goes before all rows of batches.
    is_live: bool = False
    #: The answer has no more than these.
    max_tokens: float = math.inf

    @property
    def is_common(self) -> bool:
        """Whether its seat is one of those for all, neither a spare one nor a live call's."""
        return not self.is_spare and not self.is_live

    @property
    def is_small(self) -> bool:
        """Whether it is of a small batch, whose ranks are below those of all others."""
        return self.is_spare or self.rank < 0

    @property
    def computed_tokens(self) -> float:
        """What a step has to compute of the prompt."""
        return max(0.0, self.prompt_tokens - self.cached_tokens)


class StepOutput(NamedTuple):
    """What one step has made of one sequence."""

    id: str
    tokens: int
    is_last: bool
    #: Those of its prompt that were computed for its first token; None where vLLM does not say it.
    prompt_tokens: int | None = None


@dataclass(slots=True)
class _Seated:
    sequence: Sequence
    #: What its answer is still expected to need in the KV cache, in tokens.
    answer_left: float
    #: Tokens of its answer so far.
    made: int = 0
    #: Whether its prompt is in the KV cache, so that vLLM counts it.
    has_begun: bool = False
    #: Whether its seat is given away already.
    is_ending: bool = False


class Seats:
    """The seats of one engine, and the sequences that are ready for one."""

    def __init__(self, capacity: Capacity) -> None:
        self._capacity = capacity
        self._waiting: dict[str, Sequence] = {}
        #: Ranks and ids of sequences that wait, and of some that have left meanwhile.
        self._queue: list[tuple[int, str]] = []
        self._spare_queue: list[tuple[int, str]] = []
        self._live_queue: list[tuple[int, str]] = []
        self._seated: dict[str, _Seated] = {}
        #: Among them: those in spare seats, live calls, and others whose seat is given away.
        self._spare_seated = self._live_seated = self._ending = 0
        #: Rows of batches at most, and seats that stay free for live calls, as they are now.
        self._limit, self._reserve = capacity.seats, capacity.live_seats
        #: The same for tokens of the KV cache, and whether few prompts begin beside live calls.
        self._kv_reserve, self._is_yielding = 0.0, True
        #: Whether live calls came of late, so that the next one is expected.
        self._is_live_near = False
        #: What vLLM says that it uses of the KV cache, and what is left of the answers inside.
        self._used_tokens = self._answer_tokens = 0.0
        #: Of prompts inside that have not begun: all tokens, and those to compute.
        self._prompt_tokens = 0
        self._computed_tokens = 0.0
        rows = max(_LEAST_ROWS, capacity.seats // _ROWS_PART)
        self._prompts, self._answers = _Mean(rows), _Mean(rows)
        #: Rows of small batches among those that wait, and whether they are many.
        self._small_waiting = 0
        self._is_crowd = False
        #: Steps since the last row of a small batch or live call came.
        self._lone_steps = _LONE_STEPS
        #: Rows that have left, or soon will, since one found no place; None while there is place.
        self._left: int | None = None

    @property
    def in_use(self) -> int:
        return len(self._seated)

    def made(self, id_: str) -> int:
        """Tokens of its answer so far; 0 for a sequence without a seat."""
        seated = self._seated.get(id_)
        return 0 if seated is None else seated.made

    @property
    def of_batches(self) -> int:
        """How many sequences of batches have a seat."""
        return len(self._seated) - self._live_seated

    @property
    def _common_seated(self) -> int:
        return self.of_batches - self._spare_seated

    @property
    def step_tokens(self) -> float:
        """How many tokens of prompts of batches a step may have so that the seats stay full."""
        return max(_LEAST_STEP_TOKENS, _STEP_PART * self._step_needs())

    def yield_to_live(
        self, *, limit: int, reserve: int, kv_reserve: float = 0.0, is_live_near: bool = False
    ) -> None:
        """Let batches have so many seats from now on, besides spare ones.

        They leave `reserve` seats and `kv_reserve` tokens of the KV cache free, and begin few
        prompts at a time as long as live calls are near. Whoever has a seat keeps it.
        """
        self._reserve = max(self._capacity.live_seats, reserve)
        if (limit, kv_reserve) != (self._limit, self._kv_reserve):
            # There may be more place than before.
            self._left = None
        self._limit, self._kv_reserve = limit, kv_reserve
        self._is_yielding, self._is_live_near = True, is_live_near

    def yield_no_more(self) -> None:
        """Let batches have all of their seats; those of live calls alone stay free."""
        self.yield_to_live(limit=self._capacity.seats, reserve=0)
        self._is_yielding = False

    def ask(self, sequence: Sequence) -> None:
        """A sequence is ready for a seat."""
        self._waiting[sequence.id] = sequence
        self._small_waiting += sequence.is_small
        if sequence.is_small or sequence.is_live:
            self._lone_steps = 0
        heappush(self._queue_of(sequence), (sequence.rank, sequence.id))

    def give(self) -> Iterator[Sequence]:
        """The sequences that have a seat now."""
        # A single row of a small batch waits for nobody.
        self._is_crowd = self._small_waiting > self._rows_at_a_time()
        while (sequence := _first(self._live_queue, self._waiting)) and self._has_any_seat():
            yield self._seat(self._live_queue, sequence)
        while (sequence := _first(self._spare_queue, self._waiting)) and self._has_spare(sequence):
            yield self._seat(self._spare_queue, sequence)
        while (sequence := _first(self._queue, self._waiting)) and self._has_seat(sequence):
            yield self._seat(self._queue, sequence)

    def begins_together(self, sequence: Sequence) -> bool:
        """Whether a sequence that has its seat is meant for one step with others of that moment."""
        if sequence.is_live or (sequence.is_small and not self._is_crowd):
            return False
        return self._steps_at_a_time() > 1

    def leave(self, id_: str) -> None:
        """The sequence is done, or given up."""
        if (waiting := self._waiting.pop(id_, None)) is not None:
            self._small_waiting -= waiting.is_small
        if (seated := self._seated.pop(id_, None)) is None:
            return
        self._spare_seated -= seated.sequence.is_spare
        self._live_seated -= seated.sequence.is_live
        self._ending -= seated.is_ending
        if not seated.is_ending:
            self._note_left(seated.sequence)
        self._answer_tokens -= seated.answer_left
        self._begin(seated)
        if not self._seated:
            # It says nothing of itself until it has sequences again.
            self._used_tokens = self._answer_tokens = self._computed_tokens = 0.0

    def note(self, kv_usage: float | None, outputs: Iterable[StepOutput]) -> None:
        """A step has ended; `kv_usage` is the part of the KV cache in use, if vLLM says so."""
        if kv_usage is not None:
            self._used_tokens = kv_usage * self._capacity.kv_tokens
        self._lone_steps += 1
        for output in outputs:
            if (seated := self._seated.get(output.id)) is None:
                continue
            self._begin(seated)
            made = min(output.tokens, seated.answer_left)
            seated.answer_left -= made
            self._answer_tokens -= made
            seated.made += output.tokens
            if output.is_last:
                if seated.sequence.is_common:
                    self._answers.note(max(1, seated.made))
                self.leave(output.id)
                continue
            self._foresee(seated)
            if not seated.answer_left:
                seated.answer_left = _GROWTH * seated.made
                self._answer_tokens += seated.answer_left

    def _foresee(self, seated: _Seated) -> None:
        """Note that a row of a batch may have only a few tokens more."""
        sequence = seated.sequence
        if seated.is_ending or not sequence.is_common:
            return
        if seated.made + _EARLY_TOKENS >= sequence.max_tokens:
            seated.is_ending = True
            self._ending += 1
            self._note_left(sequence)

    def _note_left(self, sequence: Sequence) -> None:
        if self._left is not None and sequence.is_common:
            self._left += 1

    def _begin(self, seated: _Seated) -> None:
        if not seated.has_begun:
            seated.has_begun = True
            self._prompt_tokens -= seated.sequence.prompt_tokens
            self._computed_tokens -= seated.sequence.computed_tokens

    def _seat(self, queue: list[tuple[int, str]], sequence: Sequence) -> Sequence:
        heappop(queue)
        del self._waiting[sequence.id]
        self._small_waiting -= sequence.is_small
        seated = self._seated[sequence.id] = _Seated(sequence, sequence.output_tokens)
        self._foresee(seated)
        self._spare_seated += sequence.is_spare
        self._live_seated += sequence.is_live
        self._prompt_tokens += sequence.prompt_tokens
        self._computed_tokens += sequence.computed_tokens
        self._answer_tokens += sequence.output_tokens
        if sequence.is_common:
            self._prompts.note(sequence.computed_tokens)
        return sequence

    def _queue_of(self, sequence: Sequence) -> list[tuple[int, str]]:
        if sequence.is_live:
            return self._live_queue
        return self._spare_queue if sequence.is_spare else self._queue

    def _has_any_seat(self) -> bool:
        return len(self._seated) < self._capacity.all_seats

    def _has_batch_seat(self) -> bool:
        """Whether a row of a batch leaves enough seats to live calls."""
        kept = max(0, self._reserve - self._live_seated)
        return len(self._seated) - self._early() < self._capacity.all_seats - kept

    def _early(self) -> int:
        """How many seats may be given away before they are free.

        It takes a step from a seat to the engine, and another one until vLLM schedules it: rows
        would leave a part of the seats empty, and the more the shorter they are.
        """
        if self._is_live():
            # A live call takes the next seat that is free.
            return 0
        return min(self._ending, self._capacity.seats // _EARLY_PART)

    def _is_live(self) -> bool:
        """Whether batches give way to a live call that is here or near."""
        return self._is_yielding and bool(self._live_seated or self._is_live_near)

    def _has_seat(self, sequence: Sequence) -> bool:
        """Whether a row of a batch begins now: it has a place, and enough begin with it."""
        if not self._seated:
            self._left = None
            return True
        if self._waits_for_others(sequence):
            return False
        has_place = self._has_place(sequence)
        if has_place:
            self._left = None
        elif not self._waits_for_prompts(sequence):
            self._left = 0
        return has_place

    def _has_spare(self, sequence: Sequence) -> bool:
        return self._has_batch_seat() and not self._waits_for_others(sequence)

    def _waits_for_others(self, sequence: Sequence) -> bool:
        """Whether more rows have to leave before this one begins, and others with it."""
        if self._left is None or (sequence.is_small and not self._is_crowd):
            return False
        return self._left < self._rows_at_a_time()

    def _rows_at_a_time(self) -> float:
        """As many rows leave in the steps of which one has prompts; 0 if all of them may have."""
        if (steps := self._steps_at_a_time()) <= 1:
            return 0
        return steps * self._common_seated / self._answers.value

    def _steps_at_a_time(self) -> float:
        """Rows begin every so many steps.

        Of n steps, one has prompts, and n / (2 x the answers' length) of the seats are empty in the
        mean: together they cost least with the n here. Where answers are of one length, the seats
        are empty for as long as the answers differ, whatever n is.
        """
        length = self._answers.value
        if self._is_live() or not length:
            return 1
        steps = max(1, min(math.sqrt(2 * length * _OVERHEAD), _MOST_STEPS_PART * length))
        if self._lone_steps < _LONE_STEPS:
            return steps
        equal = min(_EQUAL_STEPS_PART * length, _MOST_EQUAL_STEPS, self._steps_of_one_step())
        cost = steps / (2 * length) + _OVERHEAD / steps
        if equal > steps and self._answers.deviation / length + _OVERHEAD / equal < cost:
            return equal
        return steps

    def _steps_of_one_step(self) -> float:
        """How many steps' prompts fit into one."""
        if not self._capacity.step_tokens:
            return math.inf
        # Each row that is inside has a token of them.
        prompt_tokens = self._capacity.step_tokens - self._capacity.seats
        return _STEP_FILLED * prompt_tokens / max(1, self._step_needs())

    def _has_place(self, sequence: Sequence) -> bool:
        taken = self._common_seated - self._early()
        if taken >= min(self._limit, self._capacity.seats):
            return False
        if not self._has_batch_seat():
            return False
        if self._waits_for_prompts(sequence):
            return False
        if not self._capacity.kv_tokens:
            return True
        prompt_tokens = self._prompt_tokens + sequence.prompt_tokens
        needed = prompt_tokens + self._answer_tokens + sequence.output_tokens
        limit = (1 - self._capacity.spare_kv) * self._capacity.kv_tokens
        if self.of_batches:
            # A row that needs more than what is left would otherwise wait for ever.
            limit -= self._kv_reserve
        return self._used_tokens + needed <= limit

    def _waits_for_prompts(self, sequence: Sequence) -> bool:
        computed_tokens = self._computed_tokens + sequence.computed_tokens
        return self._prompt_tokens > 0 and computed_tokens > self._max_computed_tokens(sequence)

    def _max_computed_tokens(self, sequence: Sequence) -> float:
        """How many tokens may be to compute of prompts that are inside and have not begun.

        `sequence` is the next one. Those of small batches wait for each other no longer than others
        would.
        """
        # A call that came into a step full of prompts would wait for all of that step.
        is_live = self._is_live()
        is_quiet = is_live or (self._spare_seated and not sequence.is_small)
        if self._capacity.is_one_step:
            most = STEPS_OF_VECTORS * self._capacity.step_tokens or math.inf
            return QUIET_PROMPT_TOKENS if is_quiet else most
        step = self._step_needs()
        if is_quiet:
            quiet_steps = _LIVE_STEPS if is_live else _SMALL_STEPS
            return min(QUIET_PROMPT_TOKENS, max(LEAST_PROMPT_TOKENS, quiet_steps * step))
        most = STEPS_OF_PROMPTS * self._capacity.step_tokens or math.inf
        steps = max(_STEPS, _MORE * self._steps_at_a_time())
        return min(most, max(CROWD_TOKENS, steps * step))

    def _step_needs(self) -> float:
        """How many tokens of prompts each step needs so that the seats stay full."""
        if not self._answers.value:
            # Nothing is known of the answers yet.
            return math.inf
        seats = min(self._limit, self._capacity.seats)
        return seats * self._prompts.value / self._answers.value


class _Mean:
    """The mean of the last values, and how far they are from it."""

    def __init__(self, count: int) -> None:
        """It looks at about so many of them."""
        self._most = count
        self._count = 0
        self._variance = 0.0
        self.value = 0.0

    @property
    def deviation(self) -> float:
        """The standard deviation."""
        return math.sqrt(self._variance)

    def note(self, value: float) -> None:
        self._count = min(self._most, self._count + 1)
        before = self.value
        self.value += (value - before) / self._count
        self._variance += ((value - before) * (value - self.value) - self._variance) / self._count


def _first(queue: list[tuple[int, str]], waiting: dict[str, Sequence]) -> Sequence | None:
    while queue:
        if (sequence := waiting.get(queue[0][1])) is not None:
            return sequence
        heappop(queue)
    return None
