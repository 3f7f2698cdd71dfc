"""How long answers are, learned for each batch and kind of row while the batch runs. Pure."""

from collections import OrderedDict
from collections.abc import Iterator
from itertools import islice
from math import inf

_POWERS = 24
#: Batches that are remembered; the others had no answer for longer.
_MAX_BATCHES = 1000


class Lengths:
    """Counts of answers by the power of two of their length.

    They are a distribution, since the longest answers decide how long the end of a batch takes, and
    not the average (arXiv 2604.00499).
    """

    #: What is expected: no more than one answer in ten is longer.
    QUANTILE = 0.9
    #: All answers of the batch together count as so many of each kind.
    PRIOR = 0.1

    def __init__(self) -> None:
        self._all: dict[str, list[int]] = {}
        self._kinds: OrderedDict[str, dict[int, list[int]]] = OrderedDict()
        #: Answers and their tokens, by batch and kind.
        self._sums: dict[str, dict[int, tuple[int, int]]] = {}
        self._longest: dict[str, int] = {}
        #: Tokens of all answers, by batch.
        self._tokens: dict[str, int] = {}

    def note(self, batch_id: str, kind: int, tokens: int) -> None:
        """An answer of this length has come."""
        power = min(tokens.bit_length(), _POWERS - 1)
        self._all.setdefault(batch_id, [0] * _POWERS)[power] += 1
        kinds = self._kinds.setdefault(batch_id, {})
        kinds.setdefault(kind, [0] * _POWERS)[power] += 1
        sums = self._sums.setdefault(batch_id, {})
        count, total = sums.get(kind, (0, 0))
        sums[kind] = count + 1, total + tokens
        self._longest[batch_id] = max(tokens, self._longest.get(batch_id, 0))
        self._tokens[batch_id] = self._tokens.get(batch_id, 0) + tokens
        self._kinds.move_to_end(batch_id)
        if len(self._kinds) > _MAX_BATCHES:
            oldest, _ = self._kinds.popitem(last=False)
            del self._all[oldest], self._sums[oldest], self._longest[oldest], self._tokens[oldest]

    def latest(self, batches: int) -> Iterator[tuple[str, int, int]]:
        """So many batches at most that had an answer last, with its answers and their tokens."""
        for batch_id in islice(reversed(self._kinds), batches):
            yield batch_id, sum(self._all[batch_id]), self._tokens[batch_id]

    def average(self, batch_id: str, kind: int) -> float | None:
        """Tokens of an average answer of the kind; None before the first one."""
        if (found := self._sums.get(batch_id, {}).get(kind)) is None:
            return None
        count, total = found
        return total / count

    def longest(self, batch_id: str) -> int | None:
        """Tokens of the longest answer of the batch so far; None before the first one."""
        return self._longest.get(batch_id)

    def expect(self, batch_id: str, kind: int) -> float:
        """Tokens that an answer hardly exceeds; infinite before the first answer of the kind."""
        if (own := self._kinds.get(batch_id, {}).get(kind)) is None:
            return inf
        everything = self._all[batch_id]
        scale = self.PRIOR / sum(everything)
        weights = [count + scale * prior for count, prior in zip(own, everything, strict=True)]
        left = self.QUANTILE * sum(weights)
        for power, weight in enumerate(weights):
            left -= weight
            if left <= 0:
                return float(1 << power)
        return float(1 << _POWERS)
