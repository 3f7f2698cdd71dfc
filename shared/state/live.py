"""A batch while it runs: steered, and looked at more closely than its record allows."""

from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple

from shared.errors import NotFoundError
from shared.lifecycle import Status
from shared.slices import PlannedSlice, to_slice
from shared.state.client import Client
from shared.state.lanes import lacking, lacking_fields
from shared.state.scripts import Scripts
from shared.state.slices import pending_key, to_part

#: Entries of one round trip.
_MANY = 200
#: Slices that are shown singly.
_SHOWN = 20


class Attempt(NamedTuple):
    """A slice that is claimed, or was given back at least once."""

    number: int
    #: The lane job that claimed it last.
    job: str
    epoch: int
    strikes: int
    #: Why it was given back last, and when in Unix seconds; empty if it never was.
    reason: str
    given_back_at: int


class Ahead(NamedTuple):
    """Ready slices of a lane that will be claimed before a batch's first one."""

    slices: int
    rows: int
    tokens: int


class Look(NamedTuple):
    """Where a running batch stands in its lane; all counts are of slices."""

    pending: int
    ready: int
    claimed: int
    ahead: Ahead
    #: Of the lane: claims of all batches, and the batches that wait there with the rows they lack.
    lane_claimed: int
    lane_batches: int
    lane_rows: int
    #: Tenants that have batches there, this one's included.
    tenants: int
    running: list[Attempt]
    retried: int
    retries: list[Attempt]


class Live:
    """What a batch shows and takes while it runs."""

    def __init__(self, redis: Client, scripts: Scripts, namespace: str) -> None:
        self._redis = redis
        self._scripts = scripts
        self._namespace = namespace

    async def pause(self, batch_id: str) -> Status | None:
        """Start no more slices of the batch. Returns the status that rules it out, if one does."""
        return self._judge(batch_id, await self._scripts.run("pause", batch_id, 1))

    async def resume(self, batch_id: str) -> Status | None:
        """Undo `pause`. Returns the status that rules it out, if one does."""
        return self._judge(batch_id, await self._scripts.run("pause", batch_id, 0))

    async def amend(
        self, batch_id: str, *, priority: int | None = None, metadata: str | None = None
    ) -> Status | None:
        """Change priority or metadata (JSON; `null` takes it away); None leaves them.

        Returns the status in which no priority counts any more, if it has that.
        """
        wanted = "" if priority is None else priority
        return self._judge(
            batch_id, await self._scripts.run("amend", batch_id, wanted, metadata or "")
        )

    async def pieces(
        self, batch_id: str, plan: str, indexes: Sequence[int]
    ) -> AsyncIterator[PlannedSlice]:
        """The slices of these numbers in this order; ends before the first that is not known."""
        for first in range(0, len(indexes), _MANY):
            some = list(map(str, indexes[first : first + _MANY]))
            async with self._redis.pipeline(transaction=False) as pipe:
                pipe.hmget(f"{self._namespace}plan:{batch_id}:{plan}", some)
                pipe.hmget(f"{self._namespace}parts:{batch_id}", some)
                slices, parts = await pipe.execute()
            for index, piece, part in zip(some, slices, parts, strict=True):
                if piece is None:
                    return
                yield PlannedSlice(int(index), to_slice(piece), part and to_part(part))

    async def completion(
        self, batch_id: str, row: int, *, limit: int = _MANY
    ) -> list[tuple[int, int]]:
        """Commits in their order from that of row `row` on: slice, and how many rows came before.

        Empty when fewer rows are committed, or when it is no longer known.
        """
        key = f"{self._namespace}commits:{batch_id}"
        rank = await self._redis.zcount(key, "-inf", row)
        found = await self._redis.zrange(key, max(0, rank - 1), rank - 2 + limit, withscores=True)
        return [(int(index), int(before)) for index, before in found]

    async def look(self, batch_id: str, lane: str, plan: str, *, lanes: Sequence[str]) -> Look:
        """Where the batch stands in one of its lanes; what is claimed is counted of all its lanes.

        A fixed number of round trips, and bounded answers.
        """
        ns = self._namespace
        async with self._redis.pipeline(transaction=False) as pipe:
            pipe.zcard(ns + pending_key(batch_id, plan, lanes, lane))
            pipe.zrange(f"{ns}lane:{lane}:ready", 0, _MANY - 1)
            pipe.zrange(f"{ns}lane:{lane}:suspects", 0, _MANY - 1)
            pipe.scard(f"{ns}inflight:{batch_id}")
            pipe.zcard(f"{ns}lane:{lane}:claims")
            pipe.zcard(f"{ns}lane:{lane}:active")
            pipe.zrange(f"{ns}lane:{lane}:active", 0, _MANY - 1)
            pipe.srandmember(f"{ns}inflight:{batch_id}", _SHOWN)
            pipe.hlen(f"{ns}reasons:{batch_id}")
            pipe.hrandfield(f"{ns}reasons:{batch_id}", _SHOWN)
            (
                pending,
                ready,
                suspects,
                claimed,
                held,
                batches,
                active,
                running,
                retried,
                given,
            ) = await pipe.execute()
        members = [_member(text) for text in ready]
        own = next((i for i, (owner, _) in enumerate(members) if owner == batch_id), len(members))
        waiting = await self._lacking(active, lane)
        return Look(
            pending=pending,
            ready=sum(_member(text)[0] == batch_id for text in (*ready, *suspects)),
            claimed=claimed,
            ahead=await self._ahead(members[:own]),
            lane_claimed=held,
            lane_batches=batches,
            # Of those looked at, for all.
            lane_rows=sum(rows for _, rows in waiting) * batches // max(1, len(waiting)),
            tenants=len({tenant for tenant, _ in waiting}),
            running=await self._attempts(batch_id, running),
            retried=retried,
            retries=await self._attempts(batch_id, given or []),
        )

    async def _ahead(self, members: Sequence[tuple[str, int]]) -> Ahead:
        async with self._redis.pipeline(transaction=False) as pipe:
            for owner in dict.fromkeys(owner for owner, _ in members):
                pipe.hmget(f"{self._namespace}batch:{owner}", "id", "plan")
            plans = dict(await pipe.execute())
        async with self._redis.pipeline(transaction=False) as pipe:
            for owner, index in members:
                pipe.hget(f"{self._namespace}plan:{owner}:{plans.get(owner)}", str(index))
            slices = [to_slice(text) for text in await pipe.execute() if text]
        return Ahead(
            len(slices), sum(piece.rows for piece in slices), sum(piece.tokens for piece in slices)
        )

    async def _lacking(self, batch_ids: Sequence[str], lane: str) -> list[tuple[str, int]]:
        """Each batch's tenant, and how many of its rows of the lane have no result."""
        fields = lacking_fields(lane)
        async with self._redis.pipeline(transaction=False) as pipe:
            for batch_id in batch_ids:
                pipe.hmget(f"{self._namespace}batch:{batch_id}", "tenant", *fields)
            found = await pipe.execute()
        return [(tenant, lacking(*counts)) for tenant, *counts in found]

    async def _attempts(self, batch_id: str, indexes: Sequence[str]) -> list[Attempt]:
        if not indexes:
            return []
        some = sorted(indexes, key=int)
        async with self._redis.pipeline(transaction=False) as pipe:
            for what in ("jobs", "epochs", "strikes", "reasons"):
                pipe.hmget(f"{self._namespace}{what}:{batch_id}", some)
            columns = await pipe.execute()
        return [
            _attempt(int(index), *row)
            for index, row in zip(some, zip(*columns, strict=True), strict=True)
        ]

    @staticmethod
    def _judge(batch_id: str, outcome: str) -> Status | None:
        match outcome:
            case "ok" | "repeat":
                return None
            case "missing":
                raise NotFoundError(f"No batch found with id '{batch_id}'.", param="id")
            case _:
                return Status(outcome)


def _member(text: str) -> tuple[str, int]:
    batch_id, _, index = text.rpartition(":")
    return batch_id, int(index)


def _attempt(
    number: int, job: str | None, epoch: str | None, strikes: str | None, given_back: str | None
) -> Attempt:
    reason, _, at = (given_back or "").partition(" ")
    return Attempt(number, job or "", int(epoch or 0), int(strikes or 0), reason, int(at or 0))
