"""How many rows of batches run beside live calls: as many as the goals of live calls allow. Pure.

Additive increase and multiplicative decrease: rows come back one by one while the goals hold, and a
part of them leaves room when a goal is missed. Rows that run stay; fewer follow them.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

#: How often the number of rows changes, in seconds: by then the last change has had an effect.
LOOK_SECONDS = 0.5
#: After so many seconds without a live call, batches have the engine to themselves.
QUIET_SECONDS = 2.0
#: How long the number is remembered with which live calls had their goals.
_MEMORY_SECONDS = 120.0
#: What stays of the rows when a goal is missed, and which part of the seats comes back otherwise.
_DECREASE, _INCREASE = 0.7, 1 / 32
#: vLLM preempts rows when its cache is full: before that, batches give way.
_FULL_KV = 0.97
#: Over how many seconds the most live calls at once are forgotten.
_PEAK_SECONDS = 60.0


class Goals(NamedTuple):
    """What live calls are to have, in seconds; None is no goal."""

    #: Until the first token of an answer, and from one token to the next.
    ttft: float | None = None
    tpot: float | None = None


@dataclass
class LiveControl:
    """One engine's. Times are seconds of any clock."""

    #: Rows of batches at most, and at least while live calls run.
    seats: int
    goals: Goals
    least: int = 1
    _limit: float = field(init=False)
    _looked_at: float = 0.0
    _live: set[str] = field(default_factory=set)
    _live_at: float = float("-inf")
    _is_missed: bool = False
    _has_sample: bool = False
    _peak: float = 0.0
    _peak_at: float = 0.0

    def __post_init__(self) -> None:
        self._limit = float(self.seats)

    def begin(self, id_: str, now: float) -> None:
        """A sequence of a live call is ready for a seat."""
        if now - self._live_at > _MEMORY_SECONDS:
            self._limit = float(self.seats)
        if not self._live:
            self._looked_at = now
        self._live.add(id_)
        self._live_at = now
        if len(self._live) >= self.reserve(now):
            self._peak, self._peak_at = float(len(self._live)), now

    def end(self, id_: str, now: float) -> None:
        """It has ended, or is given up."""
        if id_ in self._live:
            self._live.discard(id_)
            self._live_at = now

    def note_first(self, seconds: float) -> None:
        """A live call has its first token after so long."""
        self._note(seconds, self.goals.ttft)

    def note_next(self, seconds: float) -> None:
        """A live call has its next token after so long."""
        self._note(seconds, self.goals.tpot)

    def note_kv(self, usage: float) -> None:
        """So large a part of the KV cache is in use."""
        if self._live and usage >= _FULL_KV:
            self._is_missed = True

    def reserve(self, now: float) -> int:
        """How many live calls there were at once of late: so many seats stay free for them."""
        left = max(0.0, 1 - (now - self._peak_at) / _PEAK_SECONDS)
        return min(self.seats // 2, max(len(self._live), round(self._peak * left)))

    def limit(self, in_use: int, now: float) -> int:
        """How many rows of batches may run now; `in_use` do."""
        if not self._live and now - self._live_at >= QUIET_SECONDS:
            # What was learned is kept for the next live call.
            return self.seats
        if now - self._looked_at >= LOOK_SECONDS:
            self._look(in_use)
            self._looked_at = now
        return max(self.least, int(self._limit))

    def _note(self, seconds: float, goal: float | None) -> None:
        self._has_sample = True
        self._is_missed |= goal is not None and seconds > goal

    def _look(self, in_use: int) -> None:
        if self._is_missed:
            # Seats that nobody used are no reason for what was missed.
            self._limit = max(self.least, min(self._limit, in_use) * _DECREASE)
        elif self._has_sample:
            self._limit = min(self.seats, self._limit + max(1.0, self.seats * _INCREASE))
        self._is_missed = self._has_sample = False
