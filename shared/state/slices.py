"""A batch's slices: how its rows are cut, and what has been committed for each."""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Any

from shared.retention import UNUSED_PLAN_SECONDS
from shared.slices import Part, PlannedSlice, Slice, to_part, to_slice
from shared.state.client import Client

#: Slices read in one round trip.
_PAGE = 100
#: Commits read in one round trip, unless the caller says otherwise.
_COMMITS = 200


class Slices:
    """The noun `slice` of State."""

    def __init__(self, redis: Client, namespace: str) -> None:
        self._redis = redis
        self._namespace = namespace

    async def plan(
        self,
        batch_id: str,
        plan: str,
        first: int,
        slices: list[Slice],
        *,
        lanes: Sequence[str] = ("",),
    ) -> None:
        """Store slices `first`, `first + 1`, … of the plan named `plan`.

        `Slice.lane` is an index into `lanes`. The plan takes effect when INPUT_ACCEPTED is applied
        with `plan` among its fields. Two planners of one batch use two names, and only one wins.
        """
        plan_key = f"{self._namespace}plan:{batch_id}:{plan}"
        pending: dict[str, dict[str, float]] = {}
        for index, slice_ in enumerate(slices, start=first):
            key = self._namespace + pending_key(batch_id, plan, lanes, lanes[slice_.lane])
            pending.setdefault(key, {})[str(index)] = index
        texts = {str(index): slice_.to_text() for index, slice_ in enumerate(slices, start=first)}
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.hset(plan_key, mapping=texts)
            for key, indexes in pending.items():
                pipe.zadd(key, indexes)
            pipe.expire(plan_key, UNUSED_PLAN_SECONDS)
            for key in pending:
                pipe.expire(key, UNUSED_PLAN_SECONDS)
            await pipe.execute()

    async def pages(
        self, batch_id: str, plan: str, *, first: int = 0
    ) -> AsyncGenerator[list[PlannedSlice], None]:
        """Pages of the batch's slices from `first` on, in order, each slice with its part, if any.

        Memory use and each call to Redis stay small however many slices there are.
        """
        count: int = await self._redis.hlen(f"{self._namespace}plan:{batch_id}:{plan}")
        for start in range(first, count, _PAGE):
            indexes = range(start, min(start + _PAGE, count))
            slices, parts = await self._read(batch_id, plan, indexes)
            yield [
                PlannedSlice(index, to_slice(slice_), part and to_part(part))
                for index, slice_, part in zip(indexes, slices, parts, strict=True)
            ]

    async def some(
        self, batch_id: str, plan: str, indexes: Sequence[int]
    ) -> AsyncIterator[PlannedSlice]:
        """The slices with these indexes, in this order; stops at the first one that is missing."""
        for first in range(0, len(indexes), _PAGE):
            page = indexes[first : first + _PAGE]
            slices, parts = await self._read(batch_id, plan, page)
            for index, slice_, part in zip(page, slices, parts, strict=True):
                if slice_ is None:
                    return
                yield PlannedSlice(index, to_slice(slice_), part and to_part(part))

    async def planned(self, batch_id: str, plan: str) -> list[Slice]:
        """All slices of a small batch, in order; for a large one use `pages`."""
        return [row.slice async for page in self.pages(batch_id, plan) for row in page]

    async def parts(self, batch_id: str) -> dict[int, Part]:
        """The committed parts of a small batch by slice index; for a large one use `pages`."""
        return {index: to_part(text) async for index, text in self._scan(f"parts:{batch_id}")}

    async def epochs(self, batch_id: str) -> dict[int, int]:
        """How often each slice of a small batch was claimed."""
        return {index: int(epoch) async for index, epoch in self._scan(f"epochs:{batch_id}")}

    async def commits(
        self, batch_id: str, row: int, *, limit: int = _COMMITS
    ) -> list[tuple[int, int]]:
        """Commits in the order they happened, from the one that contains the `row`th committed row.

        Each is a slice index and the number of rows committed before it. Empty when fewer rows are
        committed, or when the order is no longer known.
        """
        key = f"{self._namespace}commits:{batch_id}"
        rank = await self._redis.zcount(key, "-inf", row)
        found = await self._redis.zrange(key, max(0, rank - 1), rank - 2 + limit, withscores=True)
        return [(int(index), int(before)) for index, before in found]

    async def _read(
        self, batch_id: str, plan: str, indexes: Sequence[int]
    ) -> tuple[list[Any], list[Any]]:
        """The texts of the slices and of their parts, in one round trip."""
        names = list(map(str, indexes))
        async with self._redis.pipeline(transaction=False) as pipe:
            pipe.hmget(f"{self._namespace}plan:{batch_id}:{plan}", names)
            pipe.hmget(f"{self._namespace}parts:{batch_id}", names)
            slices, parts = await pipe.execute()
        return slices, parts

    async def _scan(self, key: str) -> AsyncGenerator[tuple[int, str], None]:
        """A hash keyed by slice index, read by many short calls so that no other call waits."""
        async for index, text in self._redis.hscan_iter(f"{self._namespace}{key}", count=_PAGE):
            yield int(index), text


def pending_key(batch_id: str, plan: str, lanes: Sequence[str], lane: str) -> str:
    """The key of the batch's pending slices on one of its lanes, as in `lua/lib/slice.lua`."""
    return f"pending:{batch_id}:{plan}" + ("" if lane == lanes[0] else f":{lane}")
