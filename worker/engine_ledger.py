"""Whose an engine's seconds are: each busy one is shared among the rows that it computed. Pure.

Time is cut into periods. What a period was busy is shared by the tokens that vLLM scheduled in it,
each weighed by what such tokens have cost so far. A row that ends takes its share at once, so
nothing is shared twice and nothing is left over: rows, lost work, calls that are of no row, and
idle time add up to all of the engine's time.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

#: How long a period lasts at least, in seconds: several steps, because vLLM says only at the end
#: of a long prompt that it was computed.
_PERIOD_SECONDS = 1.0


class Computed(NamedTuple):
    """What a step has computed of a sequence: tokens of its prompt, and of its answer."""

    sequence: str
    prompt_tokens: int
    answer_tokens: int


class Uses(NamedTuple):
    """An engine's seconds by their use. Together they are all of its time."""

    #: Of rows that have their result.
    rows: float
    #: Of rows that ended without one: cancelled, or given back.
    lost: float
    #: Of calls that are no row of a batch.
    live: float
    #: While nothing was in the engine.
    idle: float

    @property
    def total(self) -> float:
        return sum(self)


@dataclass(slots=True)
class _Account:
    """What a row has had so far, and its weighed tokens of this period."""

    seconds: float = 0.0
    #: Whole numbers, so that what is taken out and what is left are all there was.
    weight: int = 0
    sequences: set[str] = field(default_factory=set)


class EngineLedger:
    """One engine's. Every method takes the time in seconds of one monotonic clock."""

    def __init__(self, weights: "TokenWeights", now: float) -> None:
        self._weights = weights
        self._at = self._period_at = now
        self._accounts: dict[Hashable, _Account] = {}
        self._owners: dict[str, Hashable] = {}
        #: Of this period: how long the engine was busy, and all weighed tokens.
        self._busy, self._weight = 0.0, 0
        self._prompt_tokens = self._answer_tokens = 0
        self._period_busy = 0.0
        self._rows = self._lost = self._live = self._idle = 0.0

    def enter(self, row: Hashable, sequence: str, now: float) -> None:
        """A sequence of the row is in the engine from now on. `row` is None for none of a batch."""
        self._pass(now)
        self._owners[sequence] = row
        self._accounts.setdefault(row, _Account()).sequences.add(sequence)

    def step(self, computed: Iterable[Computed], now: float) -> None:
        """A step has ended. A period that has lasted long enough is shared out."""
        self._pass(now)
        for sequence, prompt_tokens, answer_tokens in computed:
            if sequence in self._owners:
                weight = self._weights.weigh(prompt_tokens, answer_tokens)
                self._accounts[self._owners[sequence]].weight += weight
                self._weight += weight
                self._prompt_tokens += prompt_tokens
                self._answer_tokens += answer_tokens
        if now - self._period_at >= _PERIOD_SECONDS and self._weight:
            self._share_out(now)

    def leave(self, sequence: str, now: float) -> None:
        """The sequence is not in the engine any more."""
        self._pass(now)
        row = self._owners.pop(sequence, None)
        if row in self._accounts:
            self._accounts[row].sequences.discard(sequence)
        if not self._owners:
            self._share_out(now)

    def settle(self, row: Hashable, now: float) -> float:
        """The row has its result: the seconds that are its own."""
        self._pass(now)
        seconds = self._take(row)
        self._rows += seconds
        return seconds

    def forget(self, row: Hashable, now: float) -> None:
        """The row has ended; what it was not settled for is lost."""
        self._pass(now)
        for sequence in self._accounts.get(row, _Account()).sequences:
            self._owners.pop(sequence, None)
        self._lost += self._take(row)
        self._accounts.pop(row, None)
        if not self._owners:
            self._share_out(now)

    def uses(self, now: float) -> Uses:
        """All seconds up to now. What is not shared out yet counts as that of rows."""
        self._pass(now)
        open_ = {row: one.seconds for row, one in self._accounts.items() if row is not None}
        rows = self._rows + sum(open_.values()) + self._busy
        return Uses(rows, self._lost, self._live, self._idle)

    def _pass(self, now: float) -> None:
        """The time since the last change was busy if anything was in the engine."""
        if now <= self._at:
            return
        seconds, self._at = now - self._at, now
        if self._owners:
            self._busy += seconds
            self._period_busy += seconds
        else:
            self._idle += seconds

    def _take(self, row: Hashable) -> float:
        """The row's seconds, those of this period included."""
        account = self._accounts.get(row)
        if account is None:
            return 0.0
        share = self._busy * account.weight / self._weight if self._weight else 0.0
        seconds = account.seconds + share
        self._busy -= share
        self._weight -= account.weight
        account.seconds, account.weight = 0.0, 0
        return seconds

    def _share_out(self, now: float) -> None:
        """End the period."""
        if self._weight > 0:
            for account in self._accounts.values():
                account.seconds += self._busy * account.weight / self._weight
                account.weight = 0
            self._weights.learn(self._prompt_tokens, self._answer_tokens, self._period_busy)
        elif self._owners:
            # A long prompt: whoever it is of will be told by its first token.
            return
        else:
            self._lost += self._busy
        if (live := self._accounts.get(None)) is not None:
            self._live += live.seconds
            live.seconds = 0.0
        self._period_at, self._busy, self._weight, self._period_busy = now, 0.0, 0, 0.0
        self._prompt_tokens = self._answer_tokens = 0


class TokenWeights:
    """What a token of a prompt costs beside one of an answer, as periods have shown.

    Least squares over the periods, of which older ones count less and less. Before the engine has
    shown enough, a prompt's token counts a tenth of an answer's.
    """

    _FIRST = 0.1
    _LEAST, _MOST = 0.001, 10.0
    #: Each period makes what is known count by so much less.
    _DECAY = 0.99

    def __init__(self) -> None:
        self.prompt = self._FIRST
        self._sums = defaultdict[str, float](float)

    def weigh(self, prompt_tokens: int, answer_tokens: int) -> int:
        """The weight of these tokens: a thousand for one of an answer."""
        return round(1000 * (self.prompt * prompt_tokens + answer_tokens))

    def learn(self, prompt_tokens: int, answer_tokens: int, seconds: float) -> None:
        """A period computed these tokens in so many busy seconds."""
        p, a = prompt_tokens / 1000, answer_tokens / 1000
        for name, value in (
            ("pp", p * p),
            ("pa", p * a),
            ("aa", a * a),
            ("ps", p * seconds),
            ("as", a * seconds),
        ):
            self._sums[name] = self._DECAY * self._sums[name] + value
        s = self._sums
        spread = s["pp"] * s["aa"] - s["pa"] ** 2
        # Periods of one mixture say nothing about what either kind costs.
        if spread <= 0.01 * s["pp"] * s["aa"] or not s["aa"]:
            return
        of_prompt = (s["aa"] * s["ps"] - s["pa"] * s["as"]) / spread
        of_answer = (s["pp"] * s["as"] - s["pa"] * s["ps"]) / spread
        if of_answer > 0:
            self.prompt = min(self._MOST, max(self._LEAST, of_prompt / of_answer))
