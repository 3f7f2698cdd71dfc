"""Batch records: created once and read often. `State` changes their status."""

import json
from collections.abc import Iterable, Mapping, Sequence
from math import inf
from typing import Any, Literal, NamedTuple

import msgspec
from redis.asyncio.client import Pipeline
from redis.exceptions import ResponseError

from shared.errors import NotFoundError, TransientError
from shared.lifecycle import Status
from shared.slices import Slice
from shared.state.away import Away
from shared.state.batch_record import BatchRecord
from shared.state.client import Client
from shared.state.limits import Quota
from shared.state.rebuilding import read_for_sure
from shared.state.scripts import Scripts, pairs

Acceptance = Literal["accepted", "duplicate", "conflict"]
#: `started` means created and running.
PackedAcceptance = Literal["accepted", "started", "duplicate", "conflict"]
#: Redis answers nobody else during a step. A batch that starts takes a quarter of a millisecond of
#: it, and another one a part of that.
_IN_ONE_STEP, _STARTED_IN_ONE_STEP = 16, 4


class Pin(NamedTuple):
    """An event's number and time (Unix milliseconds), fixed before it happens."""

    sequence: int
    at_ms: int


class Start(NamedTuple):
    """A batch's whole plan on one lane, named `plan`, and the other fields of INPUT_ACCEPTED."""

    plan: str
    lane: str
    slices: Sequence[Slice]
    fields: Mapping[str, str | int]
    quota: Quota


class NewBatch(NamedTuple):
    """The arguments of `accept`, and the plan if there is one."""

    id: str
    fingerprint: str
    fields: Mapping[str, str | int]
    input_file: Mapping[str, str | int] | None = None
    reply: Mapping[str, str] | None = None
    start: Start | None = None
    submission: str | None = None


class Told(NamedTuple):
    """What a batch is told of its end, as texts of JSON; '' for nothing.

    `foreseen` is what its lane learns from once it has ended; only the first one is kept.
    """

    batch_id: str
    predicted: str
    #: That it may be late.
    late: str = ""
    foreseen: str = ""


class Batches:
    """The noun `batch` of State."""

    def __init__(self, redis: Client, scripts: Scripts, namespace: str, away: Away) -> None:
        self._redis = redis
        self._scripts = scripts
        self._namespace = namespace
        self._away = away

    async def accept(
        self,
        batch_id: str,
        fingerprint: str,
        fields: Mapping[str, str | int],
        *,
        input_file: Mapping[str, str | int] | None,
        submission: str | None,
        reply: Mapping[str, str] | None = None,
    ) -> Acceptance:
        """Create the batch as `validating`, with its first event and the message to publish.

        `reply` says where the reply goes, which is written in the same step: `to`, `message_id` and
        `correlation_id`. `fields` must have at least id, tenant, input_file_id, created_at and
        expires_at. A repeat is harmless: with the same fingerprint it is a `duplicate`, with
        another one a `conflict`.
        """
        params = (
            batch_id,
            fingerprint,
            json.dumps(pairs(fields)),
            json.dumps(input_file) if input_file else "",
            submission or "",
            json.dumps(dict(reply)) if reply else "",
        )
        outcome: Acceptance = await self._away.found(
            batch_id, lambda: self._scripts.run("accept", *params)
        )
        return outcome

    async def accept_pack(
        self, prefix: str, batches: Sequence[NewBatch]
    ) -> list[PackedAcceptance | ResponseError | TransientError]:
        """Accept the batches of a pack that was reserved under `prefix`, a few in each step.

        A batch with a plan starts at once if its tenant's queue has room. The pack is kept if it
        contains a new batch; otherwise it becomes garbage. A batch that Redis cannot write is not
        there, and has Redis's error as its outcome; one that is not there because the pack is being
        swept has a TransientError. If a step fails, those before it have happened; all may be
        repeated.
        """
        params = [msgspec.json.encode(_accept_params(batch)) for batch in batches]
        ids = [batch.id for batch in batches]
        outcomes: list[Any] = []
        at_once = _STARTED_IN_ONE_STEP if any(batch.start for batch in batches) else _IN_ONE_STEP
        for first in range(0, len(params), at_once):
            some = params[first : first + at_once]
            before = " ".join(ids[:first])
            outcomes += await self._scripts.run("accept_pack", prefix, before, *some)

        async def again(places: Sequence[int]) -> list[Any]:
            # They need no pack.
            found: list[Any] = await self._scripts.run(
                "accept_pack", "", "", *(params[place] for place in places)
            )
            return found

        found = await self._away.all_found(ids, outcomes, "away", again)
        return [_packed_outcome(one) for one in found]

    async def predict(self, told: Sequence[Told]) -> None:
        """Keep what is predicted of these batches, of those that run."""
        await self._scripts.run_all("predict", told)

    async def get(self, batch_id: str) -> BatchRecord:
        """The record. Raises NotFoundError.

        Raises TransientError if it may be missing for a rebuild.
        """
        if found := await self.many([batch_id]):
            return found[0]
        fields, _ = await self._with_time(batch_id)
        if not fields:
            raise NotFoundError(f"No batch found with id '{batch_id}'.", param="id")
        return BatchRecord(fields)

    async def pinned(self, batch_id: str) -> tuple[BatchRecord, Pin]:
        """The record, and the number and time that its next event would get now.

        Raises NotFoundError, and TransientError during a rebuild, when the record may be outdated.
        """
        fields, (seconds, micros) = await self._with_time(batch_id)
        if not fields and await self._away.bring_back([batch_id]):
            fields, (seconds, micros) = await self._with_time(batch_id)
        if not fields:
            raise NotFoundError(f"No batch found with id '{batch_id}'.", param="id")
        record = BatchRecord(fields)
        return record, Pin(record.number("sequence") + 1, seconds * 1000 + micros // 1000)

    async def exists(self, batch_id: str) -> bool:
        """Whether there is a record, here or in S3."""
        is_here = await self._redis.exists(f"{self._namespace}batch:{batch_id}")
        return bool(is_here or await self._away.editions([batch_id]))

    async def many(self, batch_ids: Sequence[str]) -> list[BatchRecord]:
        """The records that exist, in the order asked for, in one round trip.

        Those of batches that have left Redis are read from S3.
        """
        async with self._redis.pipeline(transaction=False) as pipe:
            for batch_id in batch_ids:
                pipe.hgetall(f"{self._namespace}batch:{batch_id}")
            found = await pipe.execute()
        return await self._with_those_away(zip(batch_ids, map(BatchRecord, found), strict=True))

    async def statuses(self, batch_ids: list[str]) -> dict[str, Status]:
        """The statuses of the batches that exist, in one round trip, as `many` reads them."""
        async with self._redis.pipeline(transaction=False) as pipe:
            for batch_id in batch_ids:
                pipe.hget(f"{self._namespace}batch:{batch_id}", "status")
            found = dict(zip(batch_ids, await pipe.execute(), strict=True))
        away = await self._away.records([one for one, status in found.items() if not status])
        here = {one: Status(status) for one, status in found.items() if status}
        return here | {one: stored.record.status for one, stored in away.items()}

    async def page(
        self, tenant: str, *, after: str | None, limit: int, changed_after: int | None = None
    ) -> tuple[list[BatchRecord], bool]:
        """A tenant's batches, newest first, after the cursor; and whether there are more.

        `changed_after` (Unix microseconds) selects batches with an event since then, the most
        recently changed first. An unknown cursor gives an empty page.
        """
        since = "" if changed_after is None else changed_after
        has_more, *found = await self._scripts.run("page", tenant, after or "", limit, since)
        records = map(BatchRecord.from_text, found)
        # Of those that are away, only the ids are here.
        numbered = [(one.id, one if "status" in one.fields else BatchRecord({})) for one in records]
        return await self._with_those_away(numbered), has_more == "1"

    async def in_status(self, status: Status, *, limit: int = 1000) -> list[str]:
        """Ids of batches in a status that is not final, starting with the longest in it."""
        return await self._redis.zrange(f"{self._namespace}status:{status}", 0, limit - 1)

    async def past_window(self, *, first: int = 0, limit: int = 500) -> list[str]:
        """Ids of live batches whose completion window has closed, earliest first.

        A batch is listed until it ends. The first `first` ids are skipped.
        """
        seconds, _ = await self._redis.time()
        return await self._redis.zrangebyscore(
            f"{self._namespace}deadlines", "-inf", seconds, start=first, num=limit
        )

    async def seconds_to_next_window(self) -> float:
        """Seconds until the next completion window of a live batch closes; infinite without one."""
        seconds, micros = await self._redis.time()
        found = await self._redis.zrangebyscore(
            f"{self._namespace}deadlines", f"({seconds}", "+inf", start=0, num=1, withscores=True
        )
        return found[0][1] - seconds - micros / 1e6 if found else inf

    async def ended_before(self, seconds: float, *, limit: int = 100) -> list[str]:
        """Ids of batches that ended before this time (Unix seconds), earliest first."""
        return await self._redis.zrangebyscore(
            f"{self._namespace}endings", "-inf", seconds, start=0, num=limit
        )

    async def look_again(self, batch_ids: Sequence[str], *, after: float) -> None:
        """Leave the batches out of `ended_before` for times before `after` (Unix seconds)."""
        places = dict.fromkeys(batch_ids, after)
        await self._redis.zadd(f"{self._namespace}endings", places, xx=True, gt=True)

    async def forget(self, batch_ids: Sequence[str]) -> None:
        """Remove every trace of ended batches. Their ids and message ids can be used again."""
        await self._scripts.run("forget_batches", *batch_ids)

    async def _with_time(self, batch_id: str) -> tuple[dict[str, str], tuple[int, int]]:
        """The fields of the record and Redis's time. Raises TransientError during a rebuild."""

        def ask(pipe: Pipeline) -> None:
            pipe.hgetall(f"{self._namespace}batch:{batch_id}")
            pipe.time()

        fields, at = await read_for_sure(self._redis, self._namespace, ask)
        return fields, at

    async def _with_those_away(
        self, numbered: Iterable[tuple[str, BatchRecord]]
    ) -> list[BatchRecord]:
        """The records in order, where those without fields are read from S3 or left out."""
        known = list(numbered)
        missing = [batch_id for batch_id, record in known if not record.fields]
        away = await self._away.records(missing) if missing else {}
        found = (away[one].record if one in away else record for one, record in known)
        return [record for record in found if record.fields]


def _packed_outcome(found: Any) -> PackedAcceptance | ResponseError | TransientError:
    if found == "gone":
        return TransientError("A pack took longer than its reservation.")
    if found.startswith("failed: "):
        return ResponseError(found)
    outcome: PackedAcceptance = found
    return outcome


def _accept_params(batch: NewBatch) -> dict[str, Any]:
    """The batch as `accept_pack.lua` takes it. Missing values are left out."""
    params: dict[str, Any] = {
        "id": batch.id,
        "fingerprint": batch.fingerprint,
        "fields": pairs(batch.fields),
    }
    if batch.input_file:
        params["file"] = batch.input_file
    if batch.submission:
        params["submission"] = batch.submission
    if batch.reply:
        params["reply"] = batch.reply
    if batch.start:
        start = batch.start
        tokens = (start.quota.tokens, *start.quota.more_tokens)
        params["start"] = {
            "plan": start.plan,
            "lane": start.lane,
            "slices": [slice_.to_text() for slice_ in start.slices],
            "fields": pairs({"plan": start.plan, **start.fields}),
            "requests": start.quota.requests,
            "tokens": " ".join(map(str, tokens)),
        }
    return params
