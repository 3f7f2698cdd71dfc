"""Where a batch stands in its lane: what is ahead of it, and what became of its slices."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from shared.slices import Slice, to_slice
from shared.state.client import Client
from shared.state.lanes import rows_left, rows_left_fields
from shared.state.slices import pending_key

#: Members of a lane's lists that are looked at.
_LOOKED_AT = 200
#: Slices that are listed one by one.
_LISTED = 20


class Attempt(NamedTuple):
    """A slice that is claimed, or was given back at least once."""

    number: int
    #: The lane job that claimed it last.
    job: str
    epoch: int
    strikes: int
    #: Why it was last given back, and when (Unix seconds); empty and 0 if it never was.
    reason: str
    given_back_at: int


class Ahead(NamedTuple):
    """Ready slices of a lane that will be claimed before a batch's first one."""

    slices: int
    rows: int
    tokens: int


class BatchInLane(NamedTuple):
    """Where a running batch stands in a lane; `pending`, `ready` and `claimed` count slices."""

    pending: int
    ready: int
    #: In all lanes of the batch.
    claimed: int
    #: Slices of the batch's tenant, and those of all other tenants.
    own_ahead: Ahead
    others_ahead: Ahead
    #: Claims on the lane, of all batches.
    lane_claimed: int
    #: Among the lane's oldest batches: the tenant's, this one included, and their rows that have no
    #: result yet.
    own_batches: int
    own_rows: int
    #: Among the same: rows of other tenants that have no result yet, and how many tenants they are.
    other_rows: int
    other_tenants: int
    #: Some of the claimed slices.
    running: list[Attempt]
    retried: int
    #: Some of the slices that were given back.
    retries: list[Attempt]


class Positions:
    """The noun `position` of State."""

    def __init__(self, redis: Client, namespace: str) -> None:
        self._redis = redis
        self._namespace = namespace

    async def find(
        self, batch_id: str, lane: str, plan: str, *, lanes: Sequence[str], tenant: str
    ) -> BatchInLane:
        """Where the tenant's batch stands in one of its `lanes`.

        Takes a fixed number of round trips, with bounded answers.
        """
        ns = self._namespace
        async with self._redis.pipeline(transaction=False) as pipe:
            pipe.zcard(ns + pending_key(batch_id, plan, lanes, lane))
            pipe.zrange(f"{ns}lane:{lane}:ready", 0, _LOOKED_AT - 1)
            pipe.zrange(f"{ns}lane:{lane}:suspects", 0, _LOOKED_AT - 1)
            pipe.scard(f"{ns}inflight:{batch_id}")
            pipe.zcard(f"{ns}lane:{lane}:claims")
            pipe.zrange(f"{ns}lane:{lane}:active", 0, _LOOKED_AT - 1)
            pipe.srandmember(f"{ns}inflight:{batch_id}", _LISTED)
            pipe.hlen(f"{ns}reasons:{batch_id}")
            pipe.hrandfield(f"{ns}reasons:{batch_id}", _LISTED)
            (
                pending,
                ready,
                suspects,
                claimed,
                lane_claimed,
                active,
                running,
                retried,
                given_back,
            ) = await pipe.execute()
        members = [_member(text) for text in ready]
        own = next((i for i, (owner, _) in enumerate(members) if owner == batch_id), len(members))
        own_ahead, others_ahead = await self._ahead(members[:own], tenant)
        waiting = await self._rows_left(active, lane)
        own_rows = [rows for owner, rows in waiting if owner == tenant]
        return BatchInLane(
            pending=pending,
            ready=sum(_member(text)[0] == batch_id for text in (*ready, *suspects)),
            claimed=claimed,
            own_ahead=own_ahead,
            others_ahead=others_ahead,
            lane_claimed=lane_claimed,
            own_batches=len(own_rows),
            own_rows=sum(own_rows),
            other_rows=sum(rows for owner, rows in waiting if owner != tenant),
            other_tenants=len({owner for owner, _ in waiting} - {tenant}),
            running=await self._attempts(batch_id, running),
            retried=retried,
            retries=await self._attempts(batch_id, given_back or []),
        )

    async def jobs(self, batch_id: str) -> dict[str, int]:
        """How many slices each lane job was the last to claim, among some of the batch's slices."""
        found = await self._redis.hrandfield(f"{self._namespace}jobs:{batch_id}", _LOOKED_AT, True)
        # Names and values come in turn; some servers return them in pairs.
        flat = [part for one in found or [] for part in (one if isinstance(one, list) else [one])]
        return dict(Counter(flat[1::2]).most_common())

    async def _ahead(self, members: Sequence[tuple[str, int]], tenant: str) -> tuple[Ahead, Ahead]:
        """The sums of these slices: of the tenant's own, and of all others."""
        ns = self._namespace
        async with self._redis.pipeline(transaction=False) as pipe:
            for owner in dict.fromkeys(owner for owner, _ in members):
                pipe.hmget(f"{ns}batch:{owner}", "id", "plan", "tenant")
            batches = {owner: (plan, tenant_) for owner, plan, tenant_ in await pipe.execute()}
        unknown = ("", "")
        async with self._redis.pipeline(transaction=False) as pipe:
            for owner, index in members:
                pipe.hget(f"{ns}plan:{owner}:{batches.get(owner, unknown)[0]}", str(index))
            texts = await pipe.execute()
        own: list[Slice] = []
        others: list[Slice] = []
        for (owner, _), text in zip(members, texts, strict=True):
            if text:
                is_own = batches.get(owner, unknown)[1] == tenant
                (own if is_own else others).append(to_slice(text))
        return _sum(own), _sum(others)

    async def _rows_left(self, batch_ids: Sequence[str], lane: str) -> list[tuple[str, int]]:
        """Each batch's tenant, and how many of its rows on the lane have no result."""
        fields = rows_left_fields(lane)
        async with self._redis.pipeline(transaction=False) as pipe:
            for batch_id in batch_ids:
                pipe.hmget(f"{self._namespace}batch:{batch_id}", "tenant", *fields)
            found = await pipe.execute()
        return [(tenant, rows_left(*counts)) for tenant, *counts in found]

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


def _sum(slices: Sequence[Slice]) -> Ahead:
    return Ahead(len(slices), sum(one.rows for one in slices), sum(one.tokens for one in slices))


def _member(text: str) -> tuple[str, int]:
    batch_id, _, index = text.rpartition(":")
    return batch_id, int(index)


def _attempt(
    number: int, job: str | None, epoch: str | None, strikes: str | None, given_back: str | None
) -> Attempt:
    reason, _, at = (given_back or "").partition(" ")
    return Attempt(number, job or "", int(epoch or 0), int(strikes or 0), reason, int(at or 0))
