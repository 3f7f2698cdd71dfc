"""Whether rows that begin alike should run after each other although they do not follow each other.

An engine's own queue brings rows together that wait in it at the same time. Only what is farther
apart gains from another order, because the engine's cache may have lost the beginning. Pure.
"""

from collections.abc import Sequence
from itertools import chain

from shared.input.beginnings import BLOCK_TOKENS, beginning

Prefix = tuple[int, ...]

#: Another order must spare this part of the tokens of all rows.
MIN_GAIN = 1 / 16
#: In the sample this part of the tokens must repeat from afar. A row in a sample meets few of the
#: rows that begin like it.
_MIN_SAMPLED = 1 / 64
#: The shared part of a longer line is too small to look at.
_MAX_BYTES = 64 * 1024


def prefix_order(prefixes: Sequence[Prefix], *, tokens: float, queue_rows: int) -> list[int] | None:
    """The positions of rows in an order in which beginnings follow each other.

    None if that spares too little of the `tokens` that the rows have together. So many
    `queue_rows` are put in order behind the plan anyway.
    """
    if len(prefixes) <= queue_rows:
        return None
    near = sum(
        len(set(chain(*prefixes[first : first + queue_rows])))
        for first in range(0, len(prefixes), queue_rows)
    )
    spared = (near - len(set(chain(*prefixes)))) * BLOCK_TOKENS
    if spared < MIN_GAIN * tokens:
        return None
    return sorted(range(len(prefixes)), key=lambda position: (prefixes[position], position))


class PrefixSample:
    """A look at some of the rows, which tells whether it is worth while to look at all of them."""

    def __init__(self, *, queue_rows: int) -> None:
        self._queue_rows = queue_rows
        #: Lines that matter only if there are more rows than a queue has: number, tokens and line.
        self._waiting: list[tuple[int, int, bytes]] = []
        self._last_seen: dict[int, int] = {}
        self._tokens = self._repeated = 0
        self._is_long = False

    def add(self, number: int, tokens: int, line: bytes) -> None:
        """Look at the row with this number, counted from the first one that could be looked at."""
        if len(line) <= _MAX_BYTES:
            self._waiting.append((number, tokens, line))
        if number >= self._queue_rows:
            self._is_long = True
        if self._is_long:
            for one in self._waiting:
                self._look(*one)
            self._waiting.clear()

    @property
    def repeats(self) -> bool:
        """Whether beginnings come again from afar."""
        return self._repeated * BLOCK_TOKENS > _MIN_SAMPLED * self._tokens

    def _look(self, number: int, tokens: int, line: bytes) -> None:
        self._tokens += tokens
        for block in beginning(line).prefix:
            last = self._last_seen.get(block)
            if last is not None and number - last > self._queue_rows:
                self._repeated += 1
            self._last_seen[block] = number
