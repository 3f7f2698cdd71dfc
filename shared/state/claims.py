"""Claims: which lane job runs a slice, and how its right to the slice ends."""

import json
from collections.abc import Collection, Sequence
from typing import Any, Literal, NamedTuple

from shared.dead_rows import DeadRow
from shared.errors import BatchyardError
from shared.lifecycle import Status
from shared.slices import (
    MAX_CALL_ENTRIES,
    Claim,
    Part,
    ReleaseReason,
    Stop,
    StrikeRange,
    to_part,
    to_slice,
)
from shared.state.client import Client
from shared.state.scripts import Scripts


class SupersededError(BatchyardError):
    """The lane has another lane job by now; this one must end."""


class Ending(NamedTuple):
    """What is still in the engine of a paused batch."""

    #: As its lane jobs have told.
    rows: int
    #: Slices that have begun, and of which nobody has told yet how many rows are in the engine.
    untold: list[int]


class Claims:
    """The noun `claim` of State."""

    def __init__(self, redis: Client, scripts: Scripts, namespace: str) -> None:
        self._redis = redis
        self._scripts = scripts
        self._namespace = namespace

    async def take(
        self,
        lane: str,
        job: str,
        *,
        lease_seconds: float,
        slices: int,
        rows: int,
        min_rows: int = 0,
        begun: bool = False,
        min_batch_rows: int = 0,
        max_batch_rows: int | None = None,
        passing_over: Collection[str] = (),
    ) -> list[Claim]:
        """Claim the most urgent ready slices of the lane: up to `slices`, with up to `rows` rows.

        Claims none if fewer than `min_rows` rows are ready. It passes over slices of batches that
        have fewer rows in all than `min_batch_rows`, or more than `max_batch_rows`, and of those
        whose ids it is given. `begun` means that the slices go to the engine now; others have to
        `begin` first. Raises SupersededError when `job` is no longer the lane's job.
        """
        answer = await self._scripts.run(
            "claim",
            lane,
            job,
            int(lease_seconds * 1000),
            min(slices, MAX_CALL_ENTRIES),
            rows,
            min_rows,
            int(begun),
            min_batch_rows,
            "" if max_batch_rows is None else max_batch_rows,
            0,
            *passing_over,
        )
        return _claims(lane, job, answer)

    async def take_answered(
        self,
        lane: str,
        job: str,
        *,
        lease_seconds: float,
        slices: int,
        rows: int,
        passing_over: Collection[str] = (),
    ) -> list[Claim] | None:
        """Claim slices whose rows were all answered before, near the head of the ready list.

        None if the first slice there is one that has more than `rows` rows. It passes over those of
        batches whose ids it is given. Raises as `take`.
        """
        answer = await self._scripts.run(
            "claim",
            lane,
            job,
            int(lease_seconds * 1000),
            min(slices, MAX_CALL_ENTRIES),
            rows,
            0,
            1,
            0,
            "",
            1,
            *passing_over,
        )
        return None if answer == "full" else _claims(lane, job, answer)

    async def take_suspects(
        self, lane: str, job: str, *, lease_seconds: float, rows: int
    ) -> list[Claim]:
        """Claim suspects of the lane: several with up to `rows` rows together, or one of any size.

        They go to the engine now. Raises SupersededError when `job` is no longer the lane's job.
        """
        answer = await self._scripts.run(
            "claim_suspects", lane, job, int(lease_seconds * 1000), rows
        )
        return _claims(lane, job, answer)

    async def begin(self, claims: Sequence[Claim]) -> list[bool]:
        """Note that the slices, all of one lane, go to the engine now; whether each may.

        One may not if its claim is lost, or if its batch is paused or closing: then it is given
        back.
        """
        refused = set(await self._positions("begin", claims))
        return [position not in refused for position in range(len(claims))]

    async def stops(self, places: Sequence[tuple[str, str]]) -> dict[tuple[str, str], Stop]:
        """Of these batches and lanes, those whose slices must stop, in one round trip."""
        async with self._redis.pipeline(transaction=False) as pipe:
            for batch_id, lane in places:
                pipe.hmget(
                    f"{self._namespace}batch:{batch_id}", "status", "paused", f"lane_failed:{lane}"
                )
            found = zip(places, await pipe.execute(), strict=True)
        stops = ((place, _stop(*values)) for place, values in found)
        return {place: stop for place, stop in stops if stop is not None}

    async def tell_ending(self, claim: Claim, rows: int) -> None:
        """Note that so many rows of a slice of a paused batch are in the engine, and no others."""
        await self._scripts.run("tell_ending", claim.batch_id, claim.index, claim.epoch, rows)

    async def ending(self, batch_id: str) -> Ending:
        """What is still in the engine of a paused batch."""
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.smembers(f"{self._namespace}begun:{batch_id}")
            pipe.hgetall(f"{self._namespace}ending:{batch_id}")
            begun, told = await pipe.execute()
        untold = sorted(int(index) for index in begun - told.keys())
        return Ending(sum(map(int, told.values())), untold)

    async def renew(self, claims: list[Claim], *, lease_seconds: float) -> list[Claim]:
        """Extend the claims. Returns those to abandon: lost, or of a batch that is closing."""
        lost = await self._positions("renew", claims, int(lease_seconds * 1000))
        return [claims[position] for position in lost]

    async def commit(
        self,
        claim: Claim,
        part: Part,
        *,
        announced: bool = False,
        dead: Sequence[DeadRow] = (),
    ) -> str:
        """Record the part. Returns `ok`, or why nothing changed: `committed`, `fenced`, `closed`.

        `announced` also writes an event about this slice. `dead` are the rows of it that were given
        up because they kill engines.
        """
        outcome: str = await self._scripts.run(
            "commit",
            claim.lane,
            claim.batch_id,
            claim.index,
            claim.epoch,
            json.dumps(part),
            *part.usage,
            json.dumps(_announcement(claim, part)) if announced else "",
            *(text for row in dead for text in (row.id, row.to_text())),
        )
        return outcome

    async def release(
        self,
        claim: Claim,
        *,
        reason: ReleaseReason = ReleaseReason.NOT_RUN,
        strikes: int = 0,
        strike_ranges: Sequence[StrikeRange] = (),
        last_words: str = "",
        max_deaths: int = 0,
        gave_results: bool = False,
        engine_failure: str = "",
        kept: Part | None = None,
        is_tenants_own: bool = False,
    ) -> bool:
        """Give the slice back unrun. Returns False when the claim already belonged to another job.

        A slice with strikes is a suspect from now on. `strike_ranges` replaces what was known about
        its rows. With `max_deaths`, the death of an engine is counted for the batch and the lane;
        the lane fails at that many deaths in a row. `gave_results` means that the engine had given
        results, even if they were lost, so that a new row of deaths begins. `engine_failure` is why
        the lane's engine cannot start; the dispatcher then fails the lane's batches. `kept` is a
        part with all rows of the slice that were answered; the next claim carries it. A counted
        death with `is_tenants_own` counts for the tenant too: only its rows were in the engine.
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
                json.dumps([strike_ranges, last_words]) if strike_ranges else "",
                max_deaths,
                int(gave_results),
                engine_failure,
                json.dumps(kept) if kept else "",
                int(is_tenants_own),
            )
        )

    async def lose_input(self, claim: Claim) -> None:
        """Note that the claim's batch cannot run on: its input is gone. The dispatcher fails it."""
        await self._scripts.run("lose_input", claim.lane, claim.batch_id)

    async def reap(self, lane: str, *, all_claims: bool = False) -> int:
        """Give back slices whose claims ran out, or all claimed slices if the lane job is dead.

        Returns how many.
        """
        total = 0
        while True:
            reaped: int = await self._scripts.run("reap", lane, int(all_claims))
            total += reaped
            if reaped < MAX_CALL_ENTRIES:
                return total

    async def put_back(self, claims: Sequence[Claim]) -> list[Claim]:
        """Give slices back, all of one lane, that have not begun.

        Returns those that are back, now or since before: a repeated call answers as the first one.
        """
        returned = await self._positions("put_back", claims, ReleaseReason.NOT_RUN)
        return [claims[position] for position in returned]

    async def take_back(self, batch_id: str, *, unbegun_only: bool = False) -> int:
        """End the claims on slices of a batch that is closing. Returns how many there were.

        With `unbegun_only`, those that have not begun; of a paused batch, too.
        """
        total = 0
        while True:
            taken: int = await self._scripts.run("take_back", batch_id, int(unbegun_only))
            total += taken
            if taken < MAX_CALL_ENTRIES:
                return total

    async def commit_kept(self, batch_id: str) -> int:
        """Make parts of what was kept of a closing batch without claims; returns how many slices.

        What a batch has answered belongs to its results, even if its slice never ran to its end.
        """
        total = 0
        while True:
            looked_at: int = await self._scripts.run("commit_kept", batch_id)
            total += looked_at
            if looked_at < MAX_CALL_ENTRIES:
                return total

    async def drop_part(
        self, batch_id: str, index: int, part: Part
    ) -> Literal["again", "lost", "changed"]:
        """Take back a part whose bytes are wrong. `changed`: the slice has no or another part.

        `again`: the slice will run again, and so does its batch if it was finalizing. `lost`: its
        batch is closing, or its lane was given up, so its rows get the error of unrun rows.
        """
        outcome: Literal["again", "lost", "changed"] = await self._scripts.run(
            "drop_part", batch_id, index, part.key
        )
        return outcome

    async def inflight(self, batch_id: str) -> int:
        """How many of the batch's slices are claimed."""
        return await self._redis.scard(f"{self._namespace}inflight:{batch_id}")

    async def _positions(
        self, script: str, claims: Sequence[Claim], *arguments: str | int
    ) -> list[int]:
        """Which of the claims, all of one lane, the script names, however many there are."""
        named: list[int] = []
        for first in range(0, len(claims), MAX_CALL_ENTRIES):
            some = claims[first : first + MAX_CALL_ENTRIES]
            found: list[int] = await self._scripts.run(
                script, some[0].lane, *arguments, *_triples(some)
            )
            # Lua counts from 1.
            named += [first + int(position) - 1 for position in found]
        return named


def _triples(claims: Sequence[Claim]) -> list[str]:
    return [str(part) for c in claims for part in (c.batch_id, c.index, c.epoch)]


def _stop(status: str | None, paused: str | None, lane_failed: str | None) -> Stop | None:
    # A missing record may come back: Redis is being rebuilt.
    if status is not None and (status != Status.IN_PROGRESS or lane_failed is not None):
        return Stop.CLOSED
    return None if paused is None else Stop.PAUSED


def _claims(lane: str, job: str, answer: str) -> list[Claim]:
    if answer == "superseded":
        raise SupersededError(f"Lane {lane} is no longer served by lane job {job}.")
    # Lua encodes an empty table as an object.
    return [_claim(lane, row) for row in json.loads(answer) or []]


def _claim(lane: str, row: list[Any]) -> Claim:
    batch_id, index, epoch, strikes, slice_, *rest = row
    bucket, key, etag, endpoint, tenant, version, known, *rest = rest
    deaths, before, priority, created_at, expires_at, batch_rows, kept, is_last, *rest = rest
    weight, tenant_deaths, tenant_death_limit, traceparent, asking = rest
    strike_ranges, last_words = json.loads(known or '[[], ""]')
    return Claim(
        lane=lane,
        batch_id=batch_id,
        index=index,
        epoch=epoch,
        strikes=strikes,
        slice=to_slice(slice_),
        bucket=bucket,
        key=key,
        etag=etag,
        endpoint=endpoint,
        tenant=tenant,
        version_id=version,
        strike_ranges=tuple(StrikeRange(*range_) for range_ in strike_ranges),
        last_words=last_words,
        engine_deaths=deaths,
        strikes_before=before,
        priority=priority,
        created_at=created_at,
        expires_at=expires_at,
        batch_rows=batch_rows,
        kept=to_part(kept) if kept else None,
        is_last=is_last,
        weight=weight,
        tenant_deaths=tenant_deaths,
        tenant_death_limit=None if tenant_death_limit < 0 else tenant_death_limit,
        traceparent=traceparent,
        asking=asking,
    )


def _announcement(claim: Claim, part: Part) -> dict[str, int]:
    return {
        "index": claim.index,
        "first_row": claim.slice.first_row,
        "rows": part.rows,
        "completed": part.usage.completed,
        "failed": part.usage.failed,
    }
