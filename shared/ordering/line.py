"""What waits in front of a lane or of an engine, and what goes next. Pure: time is an argument.

Between tenants the order is fair in the tokens that engines really compute. Within a tenant it goes
by priority with ageing, then by turns between batches. A batch goes before the others of its tenant
when its deadline would otherwise be missed. Of tenants that have had about as much, the one with an
urgent batch goes first, and otherwise the one whose work begins like what the engine has in its
cache. No tenant loses its share by either.
"""

from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from shared.ordering.deadlines import Deadline
from shared.ordering.lengths import Lengths
from shared.ordering.prefix_cache import PrefixCache
from shared.ordering.shares import Shares
from shared.ordering.waiting_batch import TURN_SECONDS, TURN_TOKENS, LastTurn, Rank, WaitingBatch
from shared.ordering.work import Work

#: How far the shares of two tenants may drift apart so that urgent works, or works with a cached
#: beginning, go first: in seconds of the engine, and in tokens as long as its rate is unknown. Who
#: is ahead waits for the others afterwards, so nobody gains by asking for short windows.
DRIFT_SECONDS = 1.0
DRIFT_TOKENS = 2048
#: Batches without works that wait whose last turns are remembered.
_MAX_TURNS = 1000


class _Place(NamedTuple):
    """A batch's place among those of its tenant, until the end of its turn."""

    rank: Rank
    last_turn: LastTurn
    batch: WaitingBatch


class _Queue(NamedTuple):
    """The places of a tenant's batches as a heap, with old ones among them, until `until`."""

    places: list[_Place]
    until: float


class Line:
    """Works that wait, in an order that may change until the last moment."""

    def __init__(
        self,
        shares: Shares,
        cache: PrefixCache | None = None,
        *,
        tokens_per_block: int = 0,
        last_turns: Mapping[str, float] | None = None,
        is_lifting: bool = True,
    ) -> None:
        """An empty line. `last_turns` says when batches had their last turns, in Unix seconds.

        A line that `is_lifting` sees tenants come and go; otherwise the shares know who was away.
        Without a cache, nothing that goes through it has a cached beginning.
        """
        self.shares = shares
        self.lengths = Lengths()
        self._cache = cache
        self._tokens_per_block = tokens_per_block
        self._batches: dict[str, WaitingBatch] = {}
        self._tenants: dict[str, dict[str, WaitingBatch]] = {}
        self._queues: dict[str, _Queue] = {}
        self._last_turns = OrderedDict(
            (batch_id, LastTurn(at)) for batch_id, at in (last_turns or {}).items()
        )
        self._turns = 0
        self._is_lifting = is_lifting
        self._urgent: Sequence[str] = ()
        self._tokens_per_second = 0.0
        self._next: WaitingBatch | None = None
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, work: Work) -> None:
        batch = self._batches.get(work.batch_id)
        if batch is None:
            batch = WaitingBatch(work, self._last_turns.get(work.batch_id, LastTurn()))
            self._batches[batch.id] = batch
            if work.tenant not in self._tenants:
                if self._is_lifting:
                    self.shares.join(work.tenant, self._tenants)
                self._tenants[work.tenant] = {}
            self._tenants[work.tenant][batch.id] = batch
            self._queues.pop(work.tenant, None)
        batch.add(work)
        self.shares.weigh(work.tenant, work.weight)
        self._count += 1
        self._next = None

    def remove(self, batch_id: str, numbers: Collection[int] | None = None) -> int:
        """Take out all works of a batch, or those with these numbers. Returns how many waited."""
        batch = self._batches.get(batch_id)
        if batch is None:
            return 0
        if numbers is None:
            count = batch.count
            self._forget(batch)
        else:
            count = batch.remove(numbers)
            if not batch.count:
                self._forget(batch)
        self._count -= count
        self._next = None
        return count

    def complete(self, batch_id: str) -> None:
        """Say that all works that are left of the batch wait here; none comes after this."""
        if (batch := self._batches.get(batch_id)) is not None:
            batch.complete()

    def deadlines(self) -> list[Deadline]:
        """What each batch has waiting here, and by when it has to be done."""
        return [batch.deadline for batch in self._batches.values()]

    def hurry(self, batch_ids: Sequence[str], *, tokens_per_second: float) -> None:
        """Set which batches are `deadlines.urgent`, in that order, until the next call."""
        self._urgent = batch_ids
        self._tokens_per_second = tokens_per_second
        self._next = None

    def peek(self, now: float) -> Work:
        """What `pop` would take. Raises IndexError if nothing waits."""
        return self._first(now).next(self.lengths)

    def pop(self, now: float) -> tuple[Work, float]:
        """Take what goes next, and charge its tenant for the tokens that are not cached.

        Returns the work and the tokens charged. When the work is done, the caller charges the
        difference to what it really took. Raises IndexError if nothing waits.
        """
        batch = self._first(now)
        work = batch.pop(self.lengths)
        self._next = None
        self._count -= 1
        if batch.taken >= TURN_TOKENS or not batch.count:
            self._turns += 1
            batch.end_turn(LastTurn(now, self._turns))
            if (queue := self._queues.get(batch.tenant)) is not None:
                heappush(queue.places, _place(batch, now))
        if not batch.count:
            self._forget(batch)
        tokens = work.tokens
        if work.prefix and self._cache is not None:
            tokens -= self._cache.match(work.prefix) * self._tokens_per_block
            self._cache.add(work.prefix)
        charged = max(0.0, tokens)
        self.shares.charge(work.tenant, charged)
        return work, charged

    def _first(self, now: float) -> WaitingBatch:
        if not self._batches:
            raise IndexError("Nothing waits.")
        if self._next is None:
            poorest = min(self._tenants, key=self.shares.of)
            floor = self.shares.of(poorest)
            self._next = self._urgent_batch(floor) or self._fair_batch(poorest, floor, now)
        return self._next

    def _drift(self) -> float:
        return DRIFT_SECONDS * self._tokens_per_second or DRIFT_TOKENS

    def _urgent_batch(self, floor: float) -> WaitingBatch | None:
        most = floor + self._drift()
        waiting = (self._batches.get(batch_id) for batch_id in self._urgent)
        return next(
            (batch for batch in waiting if batch and self.shares.of(batch.tenant) <= most), None
        )

    def _fair_batch(self, poorest: str, floor: float, now: float) -> WaitingBatch:
        chosen, most = self._head(poorest, now), -1
        drift = self._drift()
        # A batch that is small against the drift would wait long for little.
        if self._cache is None or chosen.tokens <= drift:
            return chosen
        for tenant in (poorest, *self._tenants):
            if self.shares.of(tenant) - floor <= drift:
                batch = self._head(tenant, now)
                blocks = self._cache.match(batch.next(self.lengths).prefix)
                if blocks > most:
                    chosen, most = batch, blocks
        return chosen

    def _head(self, tenant: str, now: float) -> WaitingBatch:
        """The first batch of a tenant. Only time, a turn or another batch can change it."""
        queue = self._queues.get(tenant)
        if queue is None or now >= queue.until:
            places = [_place(batch, now) for batch in self._tenants[tenant].values()]
            heapify(places)
            queue = self._queues[tenant] = _Queue(places, now + TURN_SECONDS / 4)
        while True:
            place = queue.places[0]
            waits = self._batches.get(place.batch.id) is place.batch
            if waits and place.last_turn == place.batch.last_turn:
                return place.batch
            heappop(queue.places)

    def _forget(self, batch: WaitingBatch) -> None:
        del self._batches[batch.id]
        # More of it may come later.
        self._last_turns[batch.id] = batch.last_turn
        self._last_turns.move_to_end(batch.id)
        if len(self._last_turns) > _MAX_TURNS:
            self._last_turns.popitem(last=False)
        batches = self._tenants[batch.tenant]
        del batches[batch.id]
        if not batches:
            del self._tenants[batch.tenant]
            self._queues.pop(batch.tenant, None)


def _place(batch: WaitingBatch, now: float) -> _Place:
    return _Place(batch.rank(now), batch.last_turn, batch)
