"""A batch while it runs: steered, and looked at more closely than its record allows."""

from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple

from shared.errors import NotFoundError
from shared.lifecycle import Status
from shared.slices import PlannedSlice, Slice, to_slice
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
    #: Slices of the batch's tenant, and those of all others.
    own_ahead: Ahead
    others_ahead: Ahead
    #: Claims on the lane, of all batches.
    lane_claimed: int
    #: Of the lane's oldest batches, the tenant's with the rows that they lack, this one included.
    own_batches: int
    own_rows: int
    #: Of the same, the rows that those of other tenants lack, and how many tenants these are.
    other_rows: int
    other_tenants: int
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

    async def look(
        self, batch_id: str, lane: str, plan: str, *, lanes: Sequence[str], tenant: str
    ) -> Look:
        """Where the tenant's batch stands in one of its lanes; claims are counted of all its lanes.

        A fixed number of round trips, and bounded answers.
        """
        ns = self._namespace
        async with self._redis.pipeline(transaction=False) as pipe:
            pipe.zcard(ns + pending_key(batch_id, plan, lanes, lane))
            pipe.zrange(f"{ns}lane:{lane}:ready", 0, _MANY - 1)
            pipe.zrange(f"{ns}lane:{lane}:suspects", 0, _MANY - 1)
            pipe.scard(f"{ns}inflight:{batch_id}")
            pipe.zcard(f"{ns}lane:{lane}:claims")
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
                active,
                running,
                retried,
                given,
            ) = await pipe.execute()
        members = [_member(text) for text in ready]
        own = next((i for i, (owner, _) in enumerate(members) if owner == batch_id), len(members))
        own_ahead, others_ahead = await self._ahead(members[:own], tenant)
        waiting = await self._lacking(active, lane)
        own_rows = [rows for owner, rows in waiting if owner == tenant]
        return Look(
            pending=pending,
            ready=sum(_member(text)[0] == batch_id for text in (*ready, *suspects)),
            claimed=claimed,
            own_ahead=own_ahead,
            others_ahead=others_ahead,
            lane_claimed=held,
            own_batches=len(own_rows),
            own_rows=sum(own_rows),
            other_rows=sum(rows for owner, rows in waiting if owner != tenant),
            other_tenants=len({owner for owner, _ in waiting} - {tenant}),
            running=await self._attempts(batch_id, running),
            retried=retried,
            retries=await self._attempts(batch_id, given or []),
        )

    async def _ahead(self, members: Sequence[tuple[str, int]], tenant: str) -> tuple[Ahead, Ahead]:
        """These slices, added up: those of the tenant, and those of all others."""
        ns = self._namespace
        async with self._redis.pipeline(transaction=False) as pipe:
            for owner in dict.fromkeys(owner for owner, _ in members):
                pipe.hmget(f"{ns}batch:{owner}", "id", "plan", "tenant")
            batches = {owner: (plan, whose) for owner, plan, whose in await pipe.execute()}
        nobody = ("", "")
        async with self._redis.pipeline(transaction=False) as pipe:
            for owner, index in members:
                pipe.hget(f"{ns}plan:{owner}:{batches.get(owner, nobody)[0]}", str(index))
            texts = await pipe.execute()
        own: list[Slice] = []
        others: list[Slice] = []
        for (owner, _), text in zip(members, texts, strict=True):
            if text:
                is_own = batches.get(owner, nobody)[1] == tenant
                (own if is_own else others).append(to_slice(text))
        return _added_up(own), _added_up(others)

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


def _added_up(slices: Sequence[Slice]) -> Ahead:
    return Ahead(len(slices), sum(one.rows for one in slices), sum(one.tokens for one in slices))


def _member(text: str) -> tuple[str, int]:
    batch_id, _, index = text.rpartition(":")
    return batch_id, int(index)


def _attempt(
    number: int, job: str | None, epoch: str | None, strikes: str | None, given_back: str | None
) -> Attempt:
    reason, _, at = (given_back or "").partition(" ")
    return Attempt(number, job or "", int(epoch or 0), int(strikes or 0), reason, int(at or 0))
