"""Claims: which lane job runs a slice, and how its right to the slice ends."""

import json
from collections.abc import Sequence
from typing import Any

from shared.dead_rows import DeadRow
from shared.errors import BatchyardError
from shared.slices import MAX_CALL_ENTRIES, Claim, Part, ReleaseReason, StrikeRange, to_slice
from shared.state.client import Client
from shared.state.scripts import Scripts


class SupersededError(BatchyardError):
    """The lane has another lane job by now; this one must end."""


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
    ) -> list[Claim]:
        """Claim the most urgent ready slices of the lane: up to `slices`, with up to `rows` rows.

        Claims none if fewer than `min_rows` rows are ready. Raises SupersededError when `job` is no
        longer the lane's job.
        """
        answer = await self._scripts.run(
            "claim",
            lane,
            job,
            int(lease_seconds * 1000),
            min(slices, MAX_CALL_ENTRIES),
            rows,
            min_rows,
        )
        return _claims(lane, job, answer)

    async def take_suspects(
        self, lane: str, job: str, *, lease_seconds: float, rows: int
    ) -> list[Claim]:
        """Claim suspects of the lane: several with up to `rows` rows together, or one of any size.

        Raises SupersededError when `job` is no longer the lane's job.
        """
        answer = await self._scripts.run(
            "claim_suspects", lane, job, int(lease_seconds * 1000), rows
        )
        return _claims(lane, job, answer)

    async def renew(self, claims: list[Claim], *, lease_seconds: float) -> list[Claim]:
        """Extend the claims. Returns those to abandon: lost, or of a batch that is closing."""
        abandoned: list[Claim] = []
        for first in range(0, len(claims), MAX_CALL_ENTRIES):
            some = claims[first : first + MAX_CALL_ENTRIES]
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
    ) -> bool:
        """Give the slice back unrun. Returns False when the claim already belonged to another job.

        A slice with strikes is a suspect from now on. `strike_ranges` replaces what was known about
        its rows. With `max_deaths`, the death of an engine is counted for the batch and the lane;
        the lane fails at that many deaths in a row. `gave_results` means that the engine had given
        results, even if they were lost, so that a new row of deaths begins. `engine_failure` is why
        the lane's engine cannot start; the dispatcher then fails the lane's batches.
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
            )
        )

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

    async def take_back(self, batch_id: str) -> int:
        """End the claims on slices of a batch that is closing. Returns how many there were."""
        total = 0
        while True:
            taken: int = await self._scripts.run("take_back", batch_id)
            total += taken
            if taken < MAX_CALL_ENTRIES:
                return total

    async def inflight(self, batch_id: str) -> int:
        """How many of the batch's slices are claimed."""
        return await self._redis.scard(f"{self._namespace}inflight:{batch_id}")


def _claims(lane: str, job: str, answer: str) -> list[Claim]:
    if answer == "superseded":
        raise SupersededError(f"Lane {lane} is no longer served by lane job {job}.")
    # Lua encodes an empty table as an object.
    return [_claim(lane, row) for row in json.loads(answer) or []]


def _claim(lane: str, row: list[Any]) -> Claim:
    batch_id, index, epoch, strikes, slice_, *rest = row
    bucket, key, etag, endpoint, tenant, version, *rest = rest
    known, deaths, before, priority, created_at, expires_at, batch_rows = rest
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
    )


def _announcement(claim: Claim, part: Part) -> dict[str, int]:
    return {
        "index": claim.index,
        "first_row": claim.slice.first_row,
        "rows": part.rows,
        "completed": part.usage.completed,
        "failed": part.usage.failed,
    }
