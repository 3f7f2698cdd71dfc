"""Which beginnings of prompts an engine has in its cache. Pure."""

from collections import OrderedDict
from collections.abc import Sequence


class PrefixCache:
    """A guess at an engine's prefix cache: the blocks that were used last, as many as fit."""

    def __init__(self, blocks: int) -> None:
        self._blocks = blocks
        self._known: OrderedDict[int, None] = OrderedDict()

    def match(self, prefix: Sequence[int]) -> int:
        """How many of the prefix's first blocks are cached."""
        count = 0
        for block in prefix:
            if block not in self._known:
                break
            count += 1
        return count

    def add(self, prefix: Sequence[int]) -> None:
        """A row with this prefix enters the engine."""
        # A block is of no use without those before it, so the first one stays longest.
        for block in reversed(prefix):
            self._known[block] = None
            self._known.move_to_end(block)
        while len(self._known) > self._blocks:
            self._known.popitem(last=False)
