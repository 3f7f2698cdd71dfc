"""The works of one batch that wait, and which of them goes next. Pure."""

from collections import Counter
from collections.abc import Collection
from heapq import heappop, heappush
from math import inf
from typing import NamedTuple

from shared.ordering.deadlines import Deadline
from shared.ordering.lengths import Lengths
from shared.ordering.work import Work

#: Waiting this long is worth one step of priority.
AGEING_SECONDS = 600
#: A batch that had no turn for this long goes before those that had one.
TURN_SECONDS = 60
#: Tokens of one batch that make up one turn.
TURN_TOKENS = 16_384
#: At the end of a batch, its groups are put in order again after so many works, or after this part
#: of its groups: answers that have come since say more about the lengths of the others.
_LEARN_WORKS, _LEARN_PART = 32, 8


class Group(NamedTuple):
    """What works of one batch have in common: how the prompt begins, and its kind."""

    prefix: tuple[int, ...]
    kind: int


class LastTurn(NamedTuple):
    """When a batch had its last turn, in Unix seconds, and a number that grows with each turn."""

    at: float = 0.0
    number: int = 0


class Rank(NamedTuple):
    """A batch's place among those of its tenant; the lowest goes first. No two are equal."""

    priority: float
    last_turn: LastTurn
    created_at: float
    id: str


class WaitingBatch:
    """Works of one batch, by what they have in common."""

    def __init__(self, first: Work, last_turn: LastTurn) -> None:
        """An empty batch of which this is a work, and which had its last turn before."""
        self.id = first.batch_id
        self.tenant = first.tenant
        self.count = 0
        #: Predicted for all works that wait.
        self.tokens = 0.0
        self.last_turn = last_turn
        #: Tokens that were taken since then.
        self.taken = 0.0
        self._priority = first.priority
        self._weight = first.weight
        self._created_at = first.created_at
        self._expires_at = first.expires_at
        self._is_whole = False
        self._groups: dict[Group, list[tuple[float, int, Work]]] = {}
        #: The groups in their order, the next one last; made again before its first use if stale.
        self._agenda: list[Group] = []
        #: How many at the end of it are only tried: one work of each, to learn the kind's lengths.
        self._trials = 0
        #: Kinds of which a work was taken.
        self._tried: set[int] = set()
        self._is_stale = True
        self._taken_since = 0

    @property
    def deadline(self) -> Deadline:
        return Deadline(self.id, self._expires_at, self.tokens, self.tenant, self._weight)

    def rank(self, now: float) -> Rank:
        """Its place among the batches of its tenant.

        What counts is the time without a turn, and not the age: a large batch that runs all the
        time gains nothing over a small one that has just come.
        """
        waited = max(0.0, now - max(self._created_at, self.last_turn.at))
        return Rank(
            -(self._priority + waited // AGEING_SECONDS),
            LastTurn() if waited >= TURN_SECONDS else self.last_turn,
            self._created_at,
            self.id,
        )

    def end_turn(self, turn: LastTurn) -> None:
        """Other batches are next."""
        self.last_turn, self.taken = turn, 0.0

    def add(self, work: Work) -> None:
        group = Group(work.prefix, work.kind)
        if group not in self._groups:
            self._groups[group] = []
            self._is_stale = True
        heappush(self._groups[group], (-work.max_output, work.number, work))
        self.count += 1
        self.tokens += work.tokens

    def complete(self) -> None:
        """All works that are left of the batch wait here."""
        self._is_whole = self._is_stale = True

    def next(self, lengths: Lengths) -> Work:
        """The work that goes next; it stays."""
        if self._is_stale or (
            self._is_whole
            and self._taken_since >= max(_LEARN_WORKS, len(self._agenda) // _LEARN_PART)
        ):
            self._plan(lengths)
        *_, work = self._groups[self._agenda[-1]][0]
        return work

    def pop(self, lengths: Lengths) -> Work:
        """Take the work that goes next."""
        self.next(lengths)
        group = self._agenda[-1]
        works = self._groups[group]
        *_, work = heappop(works)
        if self._trials:
            self._trials -= 1
            self._agenda.pop()
        if not works:
            del self._groups[group]
            self._agenda = [other for other in self._agenda if other != group]
        self._tried.add(work.kind)
        self.count -= 1
        self.tokens -= work.tokens
        self.taken += work.tokens
        self._taken_since += 1
        return work

    def remove(self, numbers: Collection[int]) -> int:
        """Take out the works with these numbers. Returns how many waited."""
        before, wanted = self.count, frozenset(numbers)
        for group, works in list(self._groups.items()):
            # A list in order is a heap.
            left = sorted(entry for entry in works if entry[1] not in wanted)
            self.tokens -= sum(work.tokens for _, number, work in works if number in wanted)
            if not left:
                del self._groups[group]
                self._is_stale = True
            elif len(left) < len(works):
                self._groups[group] = left
            self.count -= len(works) - len(left)
        return before - self.count

    def _plan(self, lengths: Lengths) -> None:
        """Put the groups in order.

        Groups that begin alike follow each other, from the one that was taken last: prefixes in
        lexicographic order are the depth-first order of their tree, which uses each cached block
        as often as it can. When only the end of the batch is left, long answers go first, so that
        no long row runs on alone. Before that, one work of each kind is tried: what is not known
        by then counts as long.
        """
        last = self._agenda[-1] if self._agenda else None

        def end(group: Group) -> tuple[float, Group]:
            (negative, *_), *_ = self._groups[group]
            return -min(lengths.expect(self.id, group.kind), -negative), group

        self._agenda = sorted(self._groups, key=end if self._is_whole else None, reverse=True)
        if last in self._groups and not self._is_whole:
            first = self._agenda.index(last) + 1
            self._agenda = self._agenda[first:] + self._agenda[:first]
        trials: list[Group] = []
        if self._is_whole:
            counts = Counter[int]()
            for group, works in self._groups.items():
                counts[group.kind] += len(works)
            unknown = {group.kind: group for group in self._groups if group.kind not in self._tried}
            # A kind of a single work has nobody to learn from it.
            trials = [
                group
                for kind, group in unknown.items()
                if counts[kind] > 1 and lengths.expect(self.id, kind) == inf
            ]
        self._agenda += trials
        self._trials = len(trials)
        self._is_stale, self._taken_since = False, 0
