"""Which prompts of batches are in which step of vLLM. Pure.

A step takes longer with each token in it, and every live call in the engine waits for its end. The
replica says with each sequence how many tokens of prompts batches may add to a step while live
calls run, and whether it is of a live call; vLLM's core, in another process, keeps to it.

A model that gives vectors computes nothing but prompts: without a limit, a step would have all
rows that are here, and where a row takes long, whoever comes would wait for them. There a step has
what takes a short while, beside live calls or not.

Any prompt makes a step longer besides, so rows that begin together belong into one step. They reach
the core one by one, while it computes: those that came first wait for the others. And while rows of
small batches have their answers written, the prompts of all others wait some steps; where they get
vectors, every other step. The answers of others wait as well, in a small part of all steps.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from worker.live_control import QUIET_SECONDS

#: vLLM hands these on from the replica to its core, and looks at none of them itself.
_TOKENS, _LIVE, _GROUP = "batchyard-step-prompt-tokens", "batchyard-live", "batchyard-group"
#: There is no limit.
FREE = 0
#: A step of vectors takes about so many seconds, and has no fewer tokens than these if they are
#: there: each costs more in a step of few.
_VECTOR_SECONDS, _LEAST_VECTOR_TOKENS = 0.05, 256
#: How fast a model is: by the last steps, where one before counts for this part.
_STEP_WEIGHT = 0.8
#: For so many steps at most: a row that is cancelled on its way never comes. What of it comes later
#: waits no more; so many groups are remembered for that.
_MOST_STEPS, _PAST_GROUPS = 3, 64
#: Prompts of others wait for small batches so many steps, and then all have theirs: the seats of
#: those that have ended meanwhile are empty, and the next prompts are in one step. A row of vectors
#: takes one step, which is short if only rows of small batches are in it.
_SMALL_STEPS, _SMALL_STEPS_OF_VECTORS = 12, 1
#: Answers of others wait for small batches in one of so many steps; for one that comes after a
#: while without any, in so many steps one after another.
_STEPS_FOR_ONE_ALONE, _MOST_STEPS_ALONE = 40, 16


class Group(NamedTuple):
    """Rows that begin together; no other group of the replica has the number."""

    number: int
    rows: int


def headers(tokens: int | None, *, is_live: bool, group: Group | None = None) -> dict[str, str]:
    """What the core is told with a sequence.

    `tokens` is the limit from now on, or FREE; None where there are no live calls.
    """
    told = {} if tokens is None else {_TOKENS: str(tokens), **({_LIVE: "1"} if is_live else {})}
    if group is not None:
        told[_GROUP] = f"{group.number}/{group.rows}"
    return told


def group_in(told: Mapping[str, str] | None) -> Group | None:
    """The group that a sequence with these headers is of, if any."""
    if told is None or _GROUP not in told:
        return None
    number, rows = told[_GROUP].split("/")
    return Group(int(number), int(rows))


class StepLimit:
    """Belongs to the thread of one scheduler."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, *, is_one_step: bool = False
    ) -> None:
        """`is_one_step` says whether a row takes one step, as for vectors."""
        self._clock = clock
        self._pace = _Pace(clock) if is_one_step else None
        self._most_small_steps = _SMALL_STEPS_OF_VECTORS if is_one_step else _SMALL_STEPS
        #: Tokens of each step, as of the last sequence that came.
        self._tokens = FREE
        #: The sequences of live calls that are here, and when one was here for the last time.
        self._live: set[str] = set()
        self._live_at = -math.inf
        #: Of this step: what is left for all rows of batches and for those that are no small ones',
        #: and whether nothing has been taken.
        self._left = self._left_of_vectors = math.inf
        self._is_untouched = True
        #: Groups of which not all have come, by number; their sequences wait for the others.
        self._groups: dict[int, _Coming] = {}
        self._held: set[str] = set()
        #: The last groups that wait no more: what is still to come of them has missed its step.
        self._past_groups = deque[int](maxlen=_PAST_GROUPS)
        #: The sequences of small batches that are here, and for how many steps others have waited.
        self._small: set[str] = set()
        self._small_steps = 0
        #: Whether this step is for them alone, and whether the answer of another row waits in it;
        #: and the steps towards others like it: each takes `_STEPS_FOR_ONE_ALONE`.
        self._is_alone = self._has_waiting = False
        self._earned = _MOST_STEPS_ALONE * _STEPS_FOR_ONE_ALONE

    def add(
        self, id_: str, told: Mapping[str, str] | None, *, is_small: bool = False
    ) -> dict[str, str] | None:
        """A sequence has come with these headers; returns those that are not for here, if any."""
        if is_small:
            self._small.add(id_)
        if told is None:
            return None
        if _TOKENS in told:
            self._tokens = int(told[_TOKENS])
        if _LIVE in told:
            self._live.add(id_)
        if (group := group_in(told)) is not None:
            self._hold(id_, group)
        return {name: told[name] for name in told if name not in (_TOKENS, _LIVE, _GROUP)} or None

    def leave(self, id_: str) -> None:
        """The sequence is not here any more."""
        self._small.discard(id_)
        if id_ in self._live:
            self._live.remove(id_)
            self._live_at = self._clock()

    def begin(self) -> None:
        """A step is about to be made up."""
        for number, group in list(self._groups.items()):
            group.steps += 1
            if group.steps > _MOST_STEPS:
                self._let_go(number)
        is_near = self._live or self._clock() - self._live_at < QUIET_SECONDS
        self._left = self._tokens if is_near and self._tokens != FREE else math.inf
        self._is_untouched = True
        # While all of them wait for their group, a step without others would be empty.
        has_small = not self._small <= self._held
        # Prompts of others wait then, too: they would make the group's first step longer.
        prompts_wait = has_small if self._pace is not None else bool(self._small)
        has_waited = self._small_steps == self._most_small_steps
        self._small_steps = self._small_steps + 1 if prompts_wait and not has_waited else 0
        if self._pace is not None:
            self._left_of_vectors = self._pace.begin()
            return
        if not self._has_waiting:
            self._earned = min(self._earned + 1, _MOST_STEPS_ALONE * _STEPS_FOR_ONE_ALONE)
        self._has_waiting = False
        self._is_alone = has_small and self._earned >= _STEPS_FOR_ONE_ALONE

    def answers(self, id_: str) -> bool:
        """Whether the step has the next token of the sequence's answer."""
        if not self._is_alone or id_ in self._small or id_ in self._live:
            return True
        if not self._has_waiting:
            self._has_waiting = True
            self._earned -= _STEPS_FOR_ONE_ALONE
        return False

    def take(self, id_: str, tokens: int, *, may_split: bool, goes_first: bool = False) -> int:
        """How many of these tokens of the sequence's prompt the step gets.

        A prompt that may not be split is in the step as a whole, if it fits or is the first one.
        What `goes_first`, as rows of small batches do, waits for no others: its vectors are in the
        next step, which has so many fewer of others.
        """
        if id_ not in self._live:
            if id_ in self._held or (self._small_steps and not goes_first):
                return 0
            left = self._left if goes_first else min(self._left, self._left_of_vectors)
            if tokens > left and not (self._is_untouched and not may_split):
                tokens = int(left) if may_split else 0
            self._left = max(0, self._left - tokens)
            self._is_untouched &= not tokens
        self._left_of_vectors = max(0, self._left_of_vectors - tokens)
        if self._pace is not None:
            self._pace.add(tokens)
        return tokens

    def end(self) -> None:
        """The oldest step that has not ended is over."""
        if self._pace is not None:
            self._pace.end()

    def _hold(self, id_: str, group: Group) -> None:
        if group.rows == 1 or group.number in self._past_groups:
            return
        coming = self._groups.setdefault(group.number, _Coming(group.rows))
        coming.ids.append(id_)
        self._held.add(id_)
        if len(coming.ids) == coming.rows:
            self._let_go(group.number)

    def _let_go(self, number: int) -> None:
        self._held.difference_update(self._groups.pop(number).ids)
        self._past_groups.append(number)


class _Pace:
    """How many tokens a step of vectors may have, by how long the last ones took."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        #: Steps that have begun and not ended: when, and their tokens.
        self._steps: deque[tuple[float, int]] = deque()
        self._ended_at = -math.inf
        self._tokens = self._seconds = 0.0

    def begin(self) -> float:
        """A step is about to be made up; returns its tokens at most."""
        self._steps.append((self._clock(), 0))
        if not self._seconds:
            return math.inf
        return max(_LEAST_VECTOR_TOKENS, _VECTOR_SECONDS * self._tokens / self._seconds)

    def add(self, tokens: int) -> None:
        """The step that began last has these, too."""
        began_at, others = self._steps[-1]
        self._steps[-1] = began_at, others + tokens

    def end(self) -> None:
        """The oldest step that has not ended is over."""
        began_at, tokens = self._steps.popleft()
        now = self._clock()
        # One may be made up while the one before it is computed.
        seconds = now - max(began_at, self._ended_at)
        self._ended_at = now
        if tokens:
            self._tokens = _STEP_WEIGHT * self._tokens + tokens
            self._seconds = _STEP_WEIGHT * self._seconds + seconds


@dataclass
class _Coming:
    """A group of which not all have come."""

    rows: int
    ids: list[str] = field(default_factory=list)
    #: Since the first one came.
    steps: int = 0
