"""Ended batches that have left Redis: here is where they are listed, and S3 has their records."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from time import time
from typing import Literal, TypeVar

import msgspec

from shared.errors import TransientError
from shared.retention import EVENT_HISTORY_SECONDS
from shared.state.batch_record import BatchRecord
from shared.state.client import Client
from shared.state.scripts import Scripts, pairs

#: Records that are read from S3 at the same time for one call.
_AT_ONCE = 16
#: Batches that are looked at in one round trip.
_PAGE = 500

#: `gone` and `live` change nothing. A `busy` or `changed` batch is due again later.
Departure = Literal["left", "gone", "live", "busy", "changed"]
#: Reads an edition of a batch's record from S3; None where it is gone with all that made it.
RecordReader = Callable[[str, int], Awaitable["StoredRecord | None"]]
T = TypeVar("T")


class StoredRecord(msgspec.Struct, frozen=True):
    """All that Redis had of an ended batch, as S3 keeps it."""

    batch_id: str
    fields: dict[str, str]
    events: list[str] = []
    pace: list[str] = []

    @property
    def record(self) -> BatchRecord:
        """The record alone."""
        return BatchRecord(self.fields)

    @property
    def seconds_left(self) -> int:
        """For how long its events and its pace are still kept."""
        return (self.record.ended_at or 0) + EVENT_HISTORY_SECONDS - int(time())


class Away:
    """The noun `batch that is away` of State. Without a reader, such a batch is unknown.

    A batch leaves again under the next edition if it has changed since it came back, so what S3
    has of an edition is always the same.
    """

    def __init__(self, redis: Client, scripts: Scripts, namespace: str) -> None:
        self._redis = redis
        self._scripts = scripts
        self._namespace = namespace
        self._read: RecordReader | None = None

    def read_by(self, reader: RecordReader) -> None:
        """Read the records of these batches in this way from now on."""
        self._read = reader

    async def editions(self, batch_ids: Sequence[str]) -> dict[str, int]:
        """The editions under which these batches have left, if they have a place and no record.

        The caller has found that Redis has no record of them.
        """
        if self._read is None or not batch_ids:
            return {}
        async with self._redis.pipeline(transaction=False) as pipe:
            pipe.zmscore(f"{self._namespace}endings", batch_ids)
            pipe.hmget(f"{self._namespace}editions", list(batch_ids))
            places, editions = await pipe.execute()
        found = zip(batch_ids, places, editions, strict=True)
        return {one: int(edition or 0) for one, place, edition in found if place is not None}

    async def records(self, batch_ids: Sequence[str]) -> dict[str, StoredRecord]:
        """What S3 has of those of these batches that are away, of which Redis has no record."""
        found = await self._stored(await self.editions(batch_ids))
        return {one.batch_id: one for one in found}

    async def records_among(self, batch_ids: Sequence[str]) -> dict[str, StoredRecord]:
        """As `records`, of batches some of which Redis may have records of."""
        found = await self._stored(await self.among(batch_ids))
        return {one.batch_id: one for one in found}

    async def bring_back(self, batch_ids: Sequence[str]) -> bool:
        """Write the records of those of them that are away, so that scripts find them.

        Returns whether Redis has any of them now. They leave again by themselves.
        """
        wanted, are_here = await self.among(batch_ids), False
        while wanted:
            stored = await self._stored(wanted)
            outcomes = await self._scripts.run_all(
                "come_back", [_arguments(one, wanted[one.batch_id]) for one in stored]
            )
            are_here |= bool({"back", "here"}.intersection(outcomes))
            # One may have come back, been changed and left again since it was read.
            stale = [
                one.batch_id
                for one, outcome in zip(stored, outcomes, strict=True)
                if outcome == "stale"
            ]
            wanted = await self.among(stale)
        return are_here

    async def stay(self, batch_ids: Sequence[str]) -> None:
        """Let those of them that are here leave later, as if they had just come back."""
        places = dict.fromkeys(batch_ids, int(time()))
        await self._redis.zadd(f"{self._namespace}leaving", places, xx=True)

    async def found(self, batch_id: str, call: Callable[[], Awaitable[T]]) -> T:
        """What the call returns; if it misses the batch because it is away, that of a second one.

        A call says so by `missing` or `away`. Raises TransientError where its record cannot be
        read though it has a place.
        """
        outcome = await call()
        if outcome not in ("missing", "away"):
            return outcome
        if await self.bring_back([batch_id]):
            return await call()
        if outcome == "away":
            raise unreadable(batch_id)
        return outcome

    async def all_found(
        self,
        batch_ids: Sequence[str],
        outcomes: Sequence[T],
        away: T,
        again: Callable[[Sequence[int]], Awaitable[Sequence[T]]],
    ) -> list[T]:
        """The outcomes of a call for these batches; where one is `away`, that of a second call.

        `again` makes it for the batches at these places. Raises TransientError where a record
        cannot be read.
        """
        found = list(outcomes)
        if places := [place for place, outcome in enumerate(found) if outcome == away]:
            await self.bring_back([batch_ids[place] for place in places])
            for place, outcome in zip(places, await again(places), strict=True):
                if outcome == away:
                    raise unreadable(batch_ids[place])
                found[place] = outcome
        return found

    async def due(self, before: float, *, limit: int) -> list[str]:
        """Batches with a record here that ended or came back before this time (Unix seconds)."""
        return await self._redis.zrangebyscore(
            f"{self._namespace}leaving", "-inf", before, start=0, num=limit
        )

    async def read_here(self, batch_ids: Sequence[str]) -> list[tuple[StoredRecord, int]]:
        """What Redis has of each batch, and the edition under which it is to leave.

        The fields are empty for a batch without a record.
        """
        ns = self._namespace
        async with self._redis.pipeline(transaction=True) as pipe:
            for batch_id in batch_ids:
                pipe.hgetall(f"{ns}batch:{batch_id}")
                pipe.lrange(f"{ns}events:{batch_id}", 0, -1)
                pipe.lrange(f"{ns}pace:{batch_id}", 0, -1)
                pipe.hget(f"{ns}editions", batch_id)
            found = await pipe.execute()
        parts = zip(batch_ids, *(found[i::4] for i in range(4)), strict=True)
        return [(StoredRecord(*one), int(edition or 0)) for *one, edition in parts]

    async def leave(self, stored: StoredRecord, edition: int) -> Departure:
        """Remove the record of a batch, which S3 has under this edition, if it is still the same.

        The fields of `stored` may be empty; then the batch is only not due any more.
        """
        fields = msgspec.json.encode(stored.fields)
        outcome: Departure = await self._scripts.run("leave", stored.batch_id, edition, fields)
        return outcome

    async def find(self) -> int:
        """Let all ended batches leave that Redis has records of. Returns how many were not to."""
        found = 0
        async for ids in self._ended():
            if here := await self._which(ids, are_here=True):
                places = dict.fromkeys(here, int(time()))
                found += await self._redis.zadd(f"{self._namespace}leaving", places, nx=True)
        return found

    async def walk(self) -> AsyncIterator[dict[str, int]]:
        """All batches that are away with their editions, some at a time."""
        async for ids in self._ended():
            if editions := await self.among(ids):
                yield editions

    async def among(self, batch_ids: Sequence[str]) -> dict[str, int]:
        """Those of these batches that are away, with their editions."""
        return await self.editions(await self._which(batch_ids, are_here=False))

    async def _which(self, batch_ids: Sequence[str], *, are_here: bool) -> list[str]:
        """Those of these batches of which Redis has a record, or the others."""
        if self._read is None or not batch_ids:
            return []
        async with self._redis.pipeline(transaction=False) as pipe:
            for batch_id in batch_ids:
                pipe.exists(f"{self._namespace}batch:{batch_id}")
            found = zip(batch_ids, await pipe.execute(), strict=True)
        return [one for one, is_here in found if bool(is_here) is are_here]

    async def _stored(self, editions: Mapping[str, int]) -> list[StoredRecord]:
        """What can be read of these batches."""
        if (reader := self._read) is None:
            return []
        room = asyncio.Semaphore(_AT_ONCE)

        async def read(batch_id: str, edition: int) -> StoredRecord | None:
            async with room:
                return await reader(batch_id, edition)

        found = await asyncio.gather(*(read(*one) for one in editions.items()))
        return [one for one in found if one is not None]

    async def _ended(self) -> AsyncIterator[list[str]]:
        ids: list[str] = []
        async for batch_id, _ in self._redis.zscan_iter(f"{self._namespace}endings", count=_PAGE):
            ids.append(batch_id)
            if len(ids) >= _PAGE:
                yield ids
                ids = []
        if ids:
            yield ids


def unreadable(batch_id: str) -> TransientError:
    """The error for a batch that is away and of which nothing can be read."""
    return TransientError(f"The record of batch {batch_id} cannot be read. Try again later.")


def _arguments(stored: StoredRecord, edition: int) -> tuple[str, int, str]:
    seconds = stored.seconds_left
    history = {"events": stored.events, "pace": stored.pace} if seconds > 0 else {}
    params = {"fields": pairs(stored.fields), "seconds": seconds, **history}
    return stored.batch_id, edition, msgspec.json.encode(params).decode()
