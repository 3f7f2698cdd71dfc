"""Which prompts of batches are in which step of vLLM. Pure.

A step takes longer with each token in it, and every live call in the engine waits for its end. The
replica says with each sequence how many tokens of prompts batches may add to a step while live
calls run, and whether it is of a live call; vLLM's core, in another process, keeps to it.

Any prompt makes a step longer besides, so rows that begin together belong into one step. They reach
the core one by one, while it computes: those that came first wait for the others.
"""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from worker.live_control import QUIET_SECONDS

#: vLLM hands these on from the replica to its core, and looks at none of them itself.
_TOKENS, _LIVE, _GROUP = "batchyard-step-prompt-tokens", "batchyard-live", "batchyard-group"
#: There is no limit.
FREE = 0
#: For so many steps at most: a row that is cancelled on its way never comes.
_MOST_STEPS = 3


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


class StepLimit:
    """Belongs to the thread of one scheduler."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        #: Tokens of each step, as of the last sequence that came.
        self._tokens = FREE
        #: The sequences of live calls that are here, and when one was here for the last time.
        self._live: set[str] = set()
        self._live_at = -math.inf
        #: Of this step: what is left, and whether nothing has been taken.
        self._left = math.inf
        self._is_untouched = True
        #: Groups of which not all have come, by number; their sequences wait for the others.
        self._groups: dict[int, _Coming] = {}
        self._held: set[str] = set()
        #: The last group that waits no more: what is still to come of it has missed its step.
        self._last_group = -1

    def add(self, id_: str, told: Mapping[str, str] | None) -> dict[str, str] | None:
        """A sequence has come with these headers; returns those that are not for here, if any."""
        if told is None:
            return None
        if _TOKENS in told:
            self._tokens = int(told[_TOKENS])
        if _LIVE in told:
            self._live.add(id_)
        if _GROUP in told:
            self._hold(id_, Group(*map(int, told[_GROUP].split("/"))))
        return {name: told[name] for name in told if name not in (_TOKENS, _LIVE, _GROUP)} or None

    def leave(self, id_: str) -> None:
        """The sequence is not here any more."""
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

    def take(self, id_: str, tokens: int, *, may_split: bool) -> int:
        """How many of these tokens of the sequence's prompt the step gets.

        A prompt that may not be split is in the step as a whole, if it fits or is the first one.
        """
        if id_ in self._live or not tokens:
            return tokens
        if id_ in self._held:
            return 0
        if tokens > self._left and not (self._is_untouched and not may_split):
            tokens = int(self._left) if may_split else 0
        self._left = max(0, self._left - tokens)
        self._is_untouched &= not tokens
        return tokens

    def _hold(self, id_: str, group: Group) -> None:
        if group.rows == 1 or group.number <= self._last_group:
            return
        coming = self._groups.setdefault(group.number, _Coming(group.rows))
        coming.ids.append(id_)
        self._held.add(id_)
        if len(coming.ids) == coming.rows:
            self._let_go(group.number)

    def _let_go(self, number: int) -> None:
        self._held.difference_update(self._groups.pop(number).ids)
        self._last_group = max(self._last_group, number)


@dataclass
class _Coming:
    """A group of which not all have come."""

    rows: int
    ids: list[str] = field(default_factory=list)
    #: Since the first one came.
    steps: int = 0
