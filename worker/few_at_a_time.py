"""What an event loop does a few at a time: whatever comes meanwhile waits for a few, not for all.

Rows of vectors come and go by the hundred, in one message or at the end of one step. What the
replica does for a row takes a tenth of a millisecond, several times; a row of a small batch would
wait for those of hundreds at each of its turns.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

T = TypeVar("T")

#: Rows of which something is done before the loop looks at what has come; and while a row of a
#: small batch is here. The latter costs a few percent of what a loop that is always busy can do.
FEW, FEW_IN_A_HURRY = 16, 4


class Few:
    """How many rows a replica does something of at a time."""

    def __init__(self, usual: int = FEW, in_a_hurry: int = FEW_IN_A_HURRY) -> None:
        """So many, and while somebody is in a hurry."""
        self._usual, self._in_a_hurry = usual, in_a_hurry
        self._hurries = 0

    @property
    def count(self) -> int:
        return self._in_a_hurry if self._hurries else self._usual

    @contextmanager
    def hurry(self) -> Iterator[None]:
        """Be in a hurry for the block."""
        self._hurries += 1
        try:
            yield
        finally:
            self._hurries -= 1


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
            asyncio.get_running_loop().call_soon(self._do_some)

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
                asyncio.get_running_loop().call_soon(self._do_some)
