"""What rows of batches may add to a step of vLLM while live calls run: tokens of prompts. Pure.

A step takes longer with each token in it, and every live call in the engine waits for its end. The
replica says with each sequence how many tokens that are, and whether it is of a live call; vLLM's
core, in another process, keeps to it.
"""

import math
import time
from collections.abc import Callable, Mapping

from worker.live_control import QUIET_SECONDS

#: vLLM hands these on from the replica to its core, and looks at none of them itself.
_TOKENS, _LIVE = "batchyard-step-prompt-tokens", "batchyard-live"
#: There is no limit.
FREE = 0


def headers(tokens: int, *, is_live: bool) -> dict[str, str]:
    """What the core is told with a sequence. `tokens` is the limit from now on, or FREE."""
    return {_TOKENS: str(tokens), **({_LIVE: "1"} if is_live else {})}


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

    def add(self, id_: str, told: Mapping[str, str] | None) -> dict[str, str] | None:
        """A sequence has come with these headers; returns those that are not for here, if any."""
        if told is None:
            return None
        if _TOKENS in told:
            self._tokens = int(told[_TOKENS])
        if _LIVE in told:
            self._live.add(id_)
        return {name: told[name] for name in told if name not in (_TOKENS, _LIVE)} or None

    def leave(self, id_: str) -> None:
        """The sequence is not here any more."""
        if id_ in self._live:
            self._live.remove(id_)
            self._live_at = self._clock()

    def begin(self) -> None:
        """A step is about to be made up."""
        is_near = self._live or self._clock() - self._live_at < QUIET_SECONDS
        self._left = self._tokens if is_near and self._tokens != FREE else math.inf
        self._is_untouched = True

    def take(self, id_: str, tokens: int, *, may_split: bool) -> int:
        """How many of these tokens of the sequence's prompt the step gets.

        A prompt that may not be split is in the step as a whole, if it fits or is the first one.
        """
        if id_ in self._live or not tokens:
            return tokens
        if tokens > self._left and not (self._is_untouched and not may_split):
            tokens = int(self._left) if may_split else 0
        self._left = max(0, self._left - tokens)
        self._is_untouched &= not tokens
        return tokens
