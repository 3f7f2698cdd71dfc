"""How many rows of batches run beside live calls: as many as the goals of live calls allow. Pure.

Additive increase and multiplicative decrease: rows come back one by one while the goals hold, and a
part of them leaves room when a goal is missed. Rows that run stay; fewer follow them.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from worker.engine_numbers import CoreNumbers

#: How often the number of rows changes, in seconds: by then the last change has had an effect.
LOOK_SECONDS = 0.5
#: After so many seconds without a live call, batches have the engine to themselves.
QUIET_SECONDS = 2.0
#: How long the number is remembered with which live calls had their goals.
_MEMORY_SECONDS = 120.0
#: What stays of the rows when a goal is missed, and which part of the seats comes back otherwise.
_DECREASE, _INCREASE = 0.7, 1 / 32
#: Tokens of prompts of batches in a step beside live calls: at most, and at least.
MOST_PROMPT_TOKENS, LEAST_PROMPT_TOKENS = 1024, 64
#: vLLM preempts rows when its cache is full: before that, batches give way.
_FULL_KV = 0.97
#: The prefix cache forgets what rows share when it is this full and finds less than this part of
#: what it usually finds. Fewer tokens than these, or a rarer find, say nothing.
_LITTLE_ROOM, _LOST_HITS, _LEAST_QUERIES, _LEAST_HITS = 0.8, 0.5, 512, 0.1
#: How much a look counts in what is usual.
_USUAL = 0.1
#: Over how many seconds the most live calls at once are forgotten.
_PEAK_SECONDS = 60.0


class Yielding(NamedTuple):
    """How far batches give way."""

    #: At most this part of the seats and of the KV cache stays free because live calls came.
    reserve: float = 0.5
    #: A batch whose window closes within so many seconds gives way no more; None is never.
    deadline_seconds: float | None = None


class Goals(NamedTuple):
    """What live calls are to have, in seconds; None is no goal."""

    #: Until the first token of an answer, and from one token to the next on average.
    ttft: float | None = None
    tpot: float | None = None


@dataclass
class LiveControl:
    """One engine's. Times are seconds of any clock."""

    #: Rows of batches at most, and at least while live calls run.
    seats: int
    goals: Goals
    least: int = 1
    yielding: Yielding = field(default_factory=Yielding)
    #: Tokens that fit into the KV cache; 0 if there is none.
    kv_tokens: int = 0
    _limit: float = field(init=False)
    _prompt_tokens: float = MOST_PROMPT_TOKENS
    _looked_at: float = 0.0
    #: Those that are inside, with their tokens.
    _live: dict[str, float] = field(default_factory=dict)
    _live_at: float = float("-inf")
    _is_missed: bool = False
    _has_sample: bool = False
    #: From one token to the next, since the last look: how many times, and all their seconds.
    _gaps: int = 0
    _gap_seconds: float = 0.0
    #: What the core had counted by the last step, and by the last look.
    _core: CoreNumbers = field(default_factory=CoreNumbers)
    _core_before: CoreNumbers = field(default_factory=CoreNumbers)
    #: Which part of the prompts the prefix cache usually has.
    _usual_hits: float = 0.0
    _peak: "_Peak" = field(init=False)
    _token_peak: "_Peak" = field(init=False)

    def __post_init__(self) -> None:
        self._limit = float(self.seats)
        self._peak, self._token_peak = _Peak(), _Peak()

    def begin(self, id_: str, now: float, tokens: float = 0.0) -> None:
        """A sequence of a live call is ready for a seat, whose prompt and answer have `tokens`."""
        if now - self._live_at > _MEMORY_SECONDS:
            self._limit = float(self.seats)
            self._prompt_tokens = MOST_PROMPT_TOKENS
        if not self._live:
            self._looked_at = now
        self._live[id_] = tokens
        self._live_at = now
        self._peak.note(len(self._live), now)
        self._token_peak.note(sum(self._live.values()), now)

    def end(self, id_: str, now: float) -> None:
        """It has ended, or is given up."""
        if id_ in self._live:
            del self._live[id_]
            self._live_at = now

    def note_first(self, seconds: float) -> None:
        """A live call has its first token after so long."""
        self._has_sample = True
        self._is_missed |= self.goals.ttft is not None and seconds > self.goals.ttft

    def note_next(self, seconds: float) -> None:
        """A live call has its next token after so long.

        One step that is longer than others is no missed goal: what counts is their average.
        """
        self._gaps += 1
        self._gap_seconds += seconds

    def note_core(self, numbers: CoreNumbers) -> None:
        """What the core has counted since its start.

        A full KV cache and a row that was preempted are missed goals while live calls run: what is
        computed again, they wait for.
        """
        has_preempted = numbers.preemptions > self._core.preemptions
        self._is_missed |= bool(self._live) and (has_preempted or numbers.kv_usage >= _FULL_KV)
        self._core = numbers

    def reserve(self, now: float) -> int:
        """How many live calls there were at once of late: so many seats stay free for them."""
        wanted = max(len(self._live), round(self._peak.of_late(now)))
        return min(int(self.yielding.reserve * self.seats), wanted)

    def kv_reserve(self, now: float) -> float:
        """How many tokens of the KV cache stay free for further live calls, beside those inside."""
        most = self.yielding.reserve * self.kv_tokens
        inside = sum(self._live.values())
        return max(0.0, min(most, self._token_peak.of_late(now)) - inside)

    def gives_way(self, earliest_end: float, now: float) -> bool:
        """Whether batches give way, of which the first window closes then."""
        near = self.yielding.deadline_seconds
        return near is None or earliest_end - now > near

    def limit(self, in_use: int, now: float) -> int:
        """How many rows of batches may run now; `in_use` do."""
        if self.is_quiet(now):
            # What was learned is kept for the next live call.
            return self.seats
        if now - self._looked_at >= LOOK_SECONDS:
            self._look(in_use)
            self._looked_at = now
        return max(self.least, int(self._limit))

    @property
    def prompt_tokens(self) -> int:
        """How many tokens of prompts of batches a step may have beside live calls."""
        return int(self._prompt_tokens)

    def is_quiet(self, now: float) -> bool:
        """Whether no live call is here, nor was of late, so that batches have the engine."""
        return not self._live and now - self._live_at >= QUIET_SECONDS

    def _look(self, in_use: int) -> None:
        if self._gaps:
            self._has_sample = True
            tpot = self.goals.tpot
            self._is_missed |= tpot is not None and self._gap_seconds / self._gaps > tpot
        self._is_missed |= self._forgets_prefixes()
        if self._is_missed:
            # Seats that nobody used are no reason for what was missed.
            self._limit = max(self.least, min(self._limit, in_use) * _DECREASE)
            self._prompt_tokens = max(LEAST_PROMPT_TOKENS, self._prompt_tokens * _DECREASE)
        elif self._has_sample:
            self._limit = min(self.seats, self._limit + max(1.0, self.seats * _INCREASE))
            more = self._prompt_tokens + MOST_PROMPT_TOKENS * _INCREASE
            self._prompt_tokens = min(MOST_PROMPT_TOKENS, more)
        self._is_missed = self._has_sample = False
        self._gaps, self._gap_seconds = 0, 0.0

    def _forgets_prefixes(self) -> bool:
        """Whether so many rows run that the KV cache loses what they share (CONCUR)."""
        queries = self._core.prefix_queries - self._core_before.prefix_queries
        hits = self._core.prefix_hits - self._core_before.prefix_hits
        if queries < _LEAST_QUERIES:
            return False
        self._core_before = self._core
        usual, found = self._usual_hits, hits / queries
        self._usual_hits += _USUAL * (found - usual)
        is_full = self._core.kv_usage >= _LITTLE_ROOM
        return is_full and usual >= _LEAST_HITS and found < _LOST_HITS * usual


@dataclass
class _Peak:
    """The most of something of late: it is forgotten bit by bit."""

    _value: float = 0.0
    _at: float = 0.0

    def note(self, value: float, now: float) -> None:
        if value >= self.of_late(now):
            self._value, self._at = value, now

    def of_late(self, now: float) -> float:
        return self._value * max(0.0, 1 - (now - self._at) / _PEAK_SECONDS)
