"""Slices, claims and parts: how a batch's rows are cut, who runs them, and what is committed."""

import json
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from shared.dead_rows import DeadRow
from shared.errors import BatchyardError
from shared.slices import (
    Claim,
    Doubt,
    GivenBack,
    Part,
    PlannedSlice,
    Slice,
    SliceUsage,
    to_slice,
)
from shared.state.client import Client
from shared.state.scripts import Scripts

#: No script call handles more than this many entries.
_MANY = 100
#: A plan that was never accepted (its planner died) disappears after this.
_PLAN_SECONDS = 86_400


class SupersededError(BatchyardError):
    """The lane has another lane job by now; this one must end."""


class Slices:
    """The noun `slice` of State."""

    def __init__(self, redis: Client, scripts: Scripts, namespace: str) -> None:
        self._redis = redis
        self._scripts = scripts
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

        `lanes` are those that the slices' numbers mean. The plan counts once INPUT_ACCEPTED was
        applied with `plan` among its fields; two planners of one batch use two names, and only one
        of them wins.
        """
        plan_key = f"{self._namespace}plan:{batch_id}:{plan}"
        pending: dict[str, dict[str, float]] = {}
        for index, piece in enumerate(slices, start=first):
            key = self._namespace + pending_key(batch_id, plan, lanes, lanes[piece.lane])
            pending.setdefault(key, {})[str(index)] = index
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.hset(
                plan_key,
                mapping={str(first + i): piece.to_text() for i, piece in enumerate(slices)},
            )
            for key, indexes in pending.items():
                pipe.zadd(key, indexes)
            pipe.expire(plan_key, _PLAN_SECONDS)
            for key in pending:
                pipe.expire(key, _PLAN_SECONDS)
            await pipe.execute()

    async def pages(
        self, batch_id: str, plan: str, *, first: int = 0
    ) -> AsyncGenerator[list[PlannedSlice], None]:
        """The batch's slices in order from `first` on, each with its part if it has one, in pages.

        Memory and each call to Redis stay small however many slices there are.
        """
        plan_key = f"{self._namespace}plan:{batch_id}:{plan}"
        parts_key = f"{self._namespace}parts:{batch_id}"
        count: int = await self._redis.hlen(plan_key)
        for start in range(first, count, _MANY):
            indexes = range(start, min(start + _MANY, count))
            async with self._redis.pipeline(transaction=False) as pipe:
                pipe.hmget(plan_key, list(map(str, indexes)))
                pipe.hmget(parts_key, list(map(str, indexes)))
                slices, parts = await pipe.execute()
            yield [
                PlannedSlice(index, to_slice(piece), part and to_part(part))
                for index, piece, part in zip(indexes, slices, parts, strict=True)
            ]

    async def planned(self, batch_id: str, plan: str) -> list[Slice]:
        """All slices of a batch of which that is not too many, in order; else see `pages`."""
        return [row.slice async for page in self.pages(batch_id, plan) for row in page]

    async def parts(self, batch_id: str) -> dict[int, Part]:
        """The committed parts by slice index, of a batch with not too many; else see `pages`."""
        return {index: to_part(text) async for index, text in self._scan(f"parts:{batch_id}")}

    async def epochs(self, batch_id: str) -> dict[int, int]:
        """How often each slice was claimed, for a batch that has not too many."""
        return {index: int(epoch) async for index, epoch in self._scan(f"epochs:{batch_id}")}

    async def _scan(self, key: str) -> AsyncGenerator[tuple[int, str], None]:
        """A hash of slices, with many short calls rather than one that holds up all others."""
        async for index, text in self._redis.hscan_iter(f"{self._namespace}{key}", count=_MANY):
            yield int(index), text

    async def inflight(self, batch_id: str) -> int:
        """How many of the batch's slices are claimed."""
        return await self._redis.scard(f"{self._namespace}inflight:{batch_id}")

    async def claim(
        self,
        lane: str,
        job: str,
        *,
        lease_seconds: float,
        slices: int,
        rows: int,
        least_rows: int = 0,
    ) -> list[Claim]:
        """Take the most urgent ready slices of the lane, up to `slices` with up to `rows` rows.

        Takes none if fewer than `least_rows` rows are ready.

        Raises SupersededError when `job` is not the lane's job any more.
        """
        answer = await self._scripts.run(
            "claim",
            lane,
            job,
            int(lease_seconds * 1000),
            min(slices, _MANY),
            rows,
            least_rows,
        )
        return _claims(lane, job, answer)

    async def claim_suspects(
        self, lane: str, job: str, *, lease_seconds: float, rows: int
    ) -> list[Claim]:
        """Take slices of the lane in which an engine died: several up to `rows` rows, or one.

        Raises SupersededError when `job` is not the lane's job any more.
        """
        answer = await self._scripts.run(
            "claim_suspects", lane, job, int(lease_seconds * 1000), rows
        )
        return _claims(lane, job, answer)

    async def renew(self, claims: list[Claim], *, lease_seconds: float) -> list[Claim]:
        """Keep the claims. Returns those to abandon: lost, or of a batch that is closing."""
        abandoned: list[Claim] = []
        for first in range(0, len(claims), _MANY):
            some = claims[first : first + _MANY]
            triples = [str(part) for c in some for part in (c.batch_id, c.index, c.epoch)]
            lost: list[int] = await self._scripts.run(
                "renew", some[0].lane, int(lease_seconds * 1000), *triples
            )
            abandoned += [some[int(position) - 1] for position in lost]
        return abandoned

    async def commit(
        self,
        claim: Claim,
        part: Part,
        *,
        announced: bool = False,
        dead: Sequence[DeadRow] = (),
    ) -> str:
        """Record the part: `ok`, or why nothing was changed: `committed`, `fenced` or `closed`.

        `announced` writes an event of this slice besides. `dead` are those of its rows that were
        given up because they kill engines.
        """
        outcome: str = await self._scripts.run(
            "commit",
            claim.lane,
            claim.batch_id,
            claim.index,
            claim.epoch,
            json.dumps(part),
            *part.usage,
            json.dumps(_told(claim, part)) if announced else "",
            *(text for row in dead for text in (row.id, row.to_text())),
        )
        return outcome

    async def release(
        self,
        claim: Claim,
        *,
        strikes: int = 0,
        reason: GivenBack = GivenBack.NOT_RUN,
        doubts: Sequence[Doubt] = (),
        last_words: str = "",
        most_deaths: int = 0,
        gave_results: bool = False,
        engine_failure: str = "",
    ) -> bool:
        """Give the slice back unrun. False when the claim was another's already.

        With strikes it stands among the suspects from now on. `doubts` takes the place of what was
        known of its rows. With `most_deaths` an engine's death is counted for its batch and lane;
        at so many in a row the lane has failed. `gave_results`, however lost, begin another row.
        `engine_failure` is why the lane's engine cannot start; the dispatcher fails its batches.
        """
        return bool(
            await self._scripts.run(
                "release",
                claim.lane,
                claim.batch_id,
                claim.index,
                claim.epoch,
                strikes,
                reason,
                json.dumps([doubts, last_words]) if doubts else "",
                most_deaths,
                int(gave_results),
                engine_failure,
            )
        )

    async def reap(self, lane: str, *, all_claims: bool = False) -> int:
        """Give back what run-out claims of the lane held, or all of them: its job is dead."""
        total = 0
        while True:
            reaped: int = await self._scripts.run("reap", lane, int(all_claims))
            total += reaped
            if reaped < _MANY:
                return total

    async def take_back(self, batch_id: str) -> int:
        """End the claims on slices of a batch that is closing. Returns how many there were."""
        total = 0
        while True:
            taken: int = await self._scripts.run("take_back", batch_id)
            total += taken
            if taken < _MANY:
                return total


def _claims(lane: str, job: str, answer: str) -> list[Claim]:
    if answer == "superseded":
        raise SupersededError(f"Lane {lane} has another job than {job}.")
    # An empty Lua table is encoded as an object.
    return [_claim(lane, row) for row in json.loads(answer) or []]


def _claim(lane: str, row: list[Any]) -> Claim:
    batch_id, index, epoch, strikes, piece, *place, known, deaths, before = row
    bucket, key, etag, endpoint, tenant, version = place
    doubts, last_words = json.loads(known or '[[], ""]')
    return Claim(
        lane=lane,
        batch_id=batch_id,
        index=index,
        epoch=epoch,
        strikes=strikes,
        slice=to_slice(piece),
        bucket=bucket,
        key=key,
        etag=etag,
        endpoint=endpoint,
        tenant=tenant,
        version_id=version,
        doubts=tuple(Doubt(*doubt) for doubt in doubts),
        last_words=last_words,
        engine_deaths=deaths,
        strikes_before=before,
    )


def _told(claim: Claim, part: Part) -> dict[str, int]:
    return {
        "index": claim.index,
        "first_row": claim.slice.first_row,
        "rows": part.rows,
        "completed": part.usage.completed,
        "failed": part.usage.failed,
    }


def pending_key(batch_id: str, plan: str, lanes: Sequence[str], lane: str) -> str:
    """The batch's slices of one of its lanes that are neither ready nor claimed, as in Lua."""
    return f"pending:{batch_id}:{plan}" + ("" if lane == lanes[0] else f":{lane}")


def to_part(text: str) -> Part:
    """A part as Redis keeps it."""
    key, etag, output_bytes, error_bytes, rows, usage = json.loads(text)
    return Part(key, etag, output_bytes, error_bytes, rows, SliceUsage(*usage))
