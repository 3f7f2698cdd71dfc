"""What an event loop does a few at a time: whatever comes meanwhile waits for a few, not for all.

Rows of vectors come and go by the hundred, in one message or at the end of one step. What the
replica does for a row takes a tenth of a millisecond, several times; a row of a small batch would
wait for those of hundreds at each of its turns. While one is there, and just before, others stop
for a moment: the core has enough of them to go on.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

from shared.interpreter import let_threads_take_turns

T = TypeVar("T")

#: Rows of which something is done before the loop looks at what has come; and while a row of a
#: small batch is here. The latter costs a few percent of what a loop that is always busy can do.
FEW, FEW_IN_A_HURRY = 16, 4
#: How long others stop for one call of a small batch, in seconds: about as long as it takes, with
#: the end of its way here, and shorter than what the core has of them lasts.
_STOP_SECONDS = 0.05
#: How long a call that is expected may take to come, in seconds.
_EXPECTED_SECONDS = 0.04
#: The part of all time in which they may stand, and how much of it is saved for calls that come
#: soon after each other, in seconds.
_STOP_PART, _SAVED_SECONDS = 0.02, 0.25


class StopBudget:
    """How long others may be stopped: so little of all time that they lose next to nothing."""

    def __init__(self, now: float) -> None:
        """`now`, as all times, is of a clock that nobody sets, in seconds."""
        self._saved, self._at = _SAVED_SECONDS, now

    def seconds(self, now: float) -> float:
        """For how long they may be stopped now."""
        earned = _STOP_PART * (now - self._at)
        self._saved, self._at = min(_SAVED_SECONDS, self._saved + earned), now
        return max(0.0, min(_STOP_SECONDS, self._saved))

    def spend(self, seconds: float) -> None:
        """They were stopped for so long."""
        self._saved -= seconds


class Few:
    """How many rows a replica does something of at a time. Belongs to one event loop."""

    def __init__(
        self,
        usual: int = FEW,
        in_a_hurry: int = FEW_IN_A_HURRY,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """So many, and while somebody is in a hurry."""
        self._usual, self._in_a_hurry = usual, in_a_hurry
        self._hurries = 0
        self._clock = clock
        self._budget = StopBudget(clock())
        #: Since when others stand, and what lets them go on in any case.
        self._stopped_at = 0.0
        self._going_on: asyncio.TimerHandle | None = None
        self._goes = asyncio.Event()
        self._goes.set()
        self._waiting: list[Callable[[], None]] = []
        #: Ends the time in which somebody is expected who is in a hurry; None if nobody is.
        self._expecting: asyncio.TimerHandle | None = None

    @property
    def count(self) -> int:
        is_hurried = self._hurries or self._expecting is not None
        return self._in_a_hurry if is_hurried else self._usual

    @property
    def hurries(self) -> int:
        """How many are in a hurry."""
        return self._hurries

    @contextmanager
    def hurry(self, *, stops: bool = True) -> Iterator[None]:
        """Be in a hurry for the block. If it `stops` others, they stop meanwhile, for a moment."""
        self._hurries += 1
        self._forget_expected()
        let_threads_take_turns(in_a_hurry=True)
        if stops:
            self._stop()
        try:
            yield
        finally:
            self._hurries -= 1
            let_threads_take_turns(in_a_hurry=self._hurries > 0)
            if not self._hurries:
                self._go_on()

    def expect(self) -> None:
        """Somebody who is in a hurry is on the way: others stop already, and threads take turns.

        They go on if nobody comes soon.
        """
        if self._hurries or self._expecting is not None:
            return
        loop = asyncio.get_running_loop()
        self._expecting = loop.call_later(_EXPECTED_SECONDS, self._expect_nobody)
        let_threads_take_turns(in_a_hurry=True)
        self._stop()

    async def turn(self) -> None:
        """Let the loop look at what has come, and wait while others are stopped."""
        await asyncio.sleep(0)
        await self._goes.wait()

    def call_soon(self, do: Callable[[], None]) -> None:
        """As the loop's own, for what is of others: they may be stopped."""
        if self._goes.is_set():
            asyncio.get_running_loop().call_soon(do)
        else:
            self._waiting.append(do)

    def _expect_nobody(self) -> None:
        self._forget_expected()
        let_threads_take_turns()
        self._go_on()

    def _forget_expected(self) -> None:
        if self._expecting is not None:
            self._expecting.cancel()
            self._expecting = None

    def _stop(self) -> None:
        now = self._clock()
        if self._goes.is_set() and (seconds := self._budget.seconds(now)):
            self._goes.clear()
            self._stopped_at = now
            self._going_on = asyncio.get_running_loop().call_later(seconds, self._go_on)

    def _go_on(self) -> None:
        if self._going_on is None:
            return
        self._going_on.cancel()
        self._going_on = None
        self._budget.spend(self._clock() - self._stopped_at)
        self._goes.set()
        waiting, self._waiting = self._waiting, []
        for do in waiting:
            self.call_soon(do)


class FewAtATime(Generic[T]):
    """Belongs to one event loop. Does something of each item, in the order of their coming."""

    def __init__(self, do: Callable[[T], None], few: Few | None) -> None:
        """So many at a time; without `few`, all at once."""
        self._do = do
        self._few = few
        self._waiting: deque[T] = deque()

    def add(self, item: T, *, is_first: bool = False) -> None:
        """Do it soon; what is first is done now."""
        if is_first or self._few is None:
            self._do(item)
            return
        self._waiting.append(item)
        if len(self._waiting) == 1:
            self._few.call_soon(self._do_some)

    def do_all(self) -> None:
        """Do what waits now."""
        while self._waiting:
            self._do(self._waiting.popleft())

    def forget_all(self) -> None:
        """Do nothing of what waits."""
        self._waiting.clear()

    def _do_some(self) -> None:
        assert self._few is not None  # noqa: S101  # nothing waits without it
        try:
            for _ in range(min(self._few.count, len(self._waiting))):
                self._do(self._waiting.popleft())
        finally:
            if self._waiting:
                self._few.call_soon(self._do_some)
