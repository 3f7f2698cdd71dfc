"""Lanes: their ready lists, and the lane job that each has while there is work."""

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import NamedTuple

import msgspec

from shared.lane_waits import LaneJob, Start, starts_in
from shared.lifecycle import Status
from shared.ordering.load import rounded_rate
from shared.ordering.outlook import BatchLoad, Ended, Foreseen, LaneOutlook
from shared.ordering.pace import Done, KindPace, Pace, done_by_kind, kind_of, to_pace
from shared.ordering.tenant_usage import to_usages
from shared.slices import ReadySlice, Slice, to_slice
from shared.state.client import Client
from shared.state.engines import Engines
from shared.state.scripts import Scripts, pairs
from shared.state.slices import pending_key

#: Batches whose records are read in one round trip.
_BATCHES = 500
#: If more than `_BATCHES` wait, candidates are the `_CLOSING` batches whose windows close next, the
#: `_OLDEST` ones, and the next batches of `_TENANTS` tenants.
_CLOSING, _OLDEST, _TENANTS = 200, 50, 250
#: A new batch's end is predicted from as many of the lane's batches.
_FORESEEN = 2000
#: What is read of a batch for that, before the fields whose names depend on the lane.
_LOAD_FIELDS = (
    "tenant",
    "endpoint",
    "lane",
    "lane_tokens",
    "total",
    "slices_total",
    "priority",
    "expires_at",
    "input_tokens",
    "cached_tokens",
    "output_tokens",
)
#: What is read of a candidate's batch, before the fields whose names depend on the lane.
_CANDIDATE_FIELDS = ("status", "plan", "lane", "tenant", "priority", "created_at", "expires_at")
_LANES = _CANDIDATE_FIELDS.index("lane")


class RowsAhead(NamedTuple):
    """Rows of a lane that have no result yet: one tenant's own, and those of all others."""

    own: int
    others: int


class TenantLoad(NamedTuple):
    """What a tenant has on a lane: running batches, and their rows without a result."""

    batches: int
    rows_left: int


class LaneCost(NamedTuple):
    """GPU time in microseconds of a predicted token, as the lane has learned it; 0 before.

    `error` is how far predictions for its batches were off lately, as a part of what they spent;
    None before there was one.
    """

    micros_per_token: float = 0.0
    error: float | None = None


class Backlog(NamedTuple):
    """How many batches have pending slices, the newest of them, and how many slices are ready."""

    batches: int
    newest: str
    ready: int


class JobRecord(NamedTuple):
    """What is known about a lane's job. Times are Unix seconds, 0 if it never happened.

    `rate` is the lane's rows per second while its engine is full. It outlives the job, and so do
    `token_rate`, `deaths`, `pace` and what starts take.
    """

    id: str
    opened_at: float
    beat_at: float
    rows_wanted: int
    rows: int
    executions: int
    rate: float
    #: For a model with several pools: the pool whose engine runs the rows; empty if there is none.
    runs_on: str = ""
    #: Pools that were asked for an engine and have no room for it.
    full: tuple[str, ...] = ()
    #: When the next pool will be asked.
    spills_at: float = 0
    #: How many engines in a row died of suspects, with no result in between.
    deaths: int = 0
    #: Predicted for the rows that were committed, and how many of them a second.
    tokens: int = 0
    token_rate: float = 0
    #: When the job had its first result; 0 if it has none.
    first_result_at: float = 0
    #: Whether the engine ran when the job was opened.
    is_warm: bool = False
    #: From a job's opening to its first result, in seconds, if the engine ran already and if it had
    #: to start; 0 if that is not known.
    warm_start: float = 0
    cold_start: float = 0
    #: What is known of the engine by kind of row, and how many rows it computes at once.
    pace: Pace = Pace()
    seats: int = 0

    def to_start(self) -> Start:
        """What says when the lane gives results."""
        has_job = bool(self.id)
        return Start(
            opened_at=self.opened_at if has_job else 0.0,
            has_results=has_job and self.first_result_at > 0,
            is_warm=has_job and self.is_warm,
            warm=self.warm_start,
            cold=self.cold_start,
        )

    def to_lane_job(self) -> LaneJob:
        """What says why the lane waits."""
        return LaneJob(
            self.id,
            self.opened_at,
            self.beat_at,
            self.rate,
            self.runs_on,
            self.full,
            self.spills_at,
        )


class Lanes:
    """The noun `lane` of State."""

    def __init__(self, redis: Client, scripts: Scripts, namespace: str, engines: Engines) -> None:
        self._redis = redis
        self._scripts = scripts
        self._namespace = namespace
        self._engines = engines

    async def names(self) -> list[str]:
        """Every lane that ever had a batch or a live call."""
        return sorted(await self._redis.smembers(f"{self._namespace}lanes"))

    async def active(self, lane: str, *, limit: int = 500) -> list[str]:
        """Ids of the lane's running batches, oldest first."""
        return await self._redis.zrange(self._key(lane, "active"), 0, limit - 1)

    async def active_count(self, lane: str) -> int:
        """How many batches run on the lane."""
        return await self._redis.zcard(self._key(lane, "active"))

    async def backlog(self, lane: str) -> Backlog:
        """What a lane has waiting, in short."""
        async with self._redis.pipeline(transaction=False) as pipe:
            pipe.zcard(self._key(lane, "waiting"))
            pipe.zrevrange(self._key(lane, "waiting"), 0, 0)
            pipe.zcard(self._key(lane, "ready"))
            batches, newest, ready = await pipe.execute()
        return Backlog(batches, newest[0] if newest else "", ready)

    async def rows_ahead(self, lane: str, *, tenant: str) -> RowsAhead:
        """Count the rows of the lane's running batches that have no result yet."""
        loads = await self.loads(lane)
        own = loads[tenant].rows_left if tenant in loads else 0
        return RowsAhead(own, sum(load.rows_left for load in loads.values()) - own)

    async def loads(self, lane: str) -> dict[str, TenantLoad]:
        """What each tenant has on the lane; batches that are paused do not count."""
        batches = Counter[str]()
        rows = Counter[str]()
        first = 0
        while ids := await self._redis.zrange(
            self._key(lane, "active"), first, first + _BATCHES - 1
        ):
            async with self._redis.pipeline(transaction=False) as pipe:
                for batch_id in ids:
                    fields = ("tenant", *rows_left_fields(lane))
                    pipe.hmget(f"{self._namespace}batch:{batch_id}", *fields)
                for owner, *row in await pipe.execute():
                    # The batch may have been forgotten meanwhile.
                    if owner is not None:
                        batches[owner] += 1
                        rows[owner] += rows_left(*row)
            first += len(ids)
        return {tenant: TenantLoad(batches[tenant], rows[tenant]) for tenant in batches}

    async def outlook(self, lane: str) -> LaneOutlook:
        """What a batch has to expect of the lane: its pace, its oldest batches, its last ends."""
        job, engine = await asyncio.gather(self.job(lane), self._engines.one(lane))
        pace = job.pace if job.pace.kinds else _pace_of_rates(job)
        if pace.whole is None:
            return LaneOutlook()
        async with self._redis.pipeline(transaction=False) as pipe:
            pipe.zrange(self._key(lane, "active"), 0, _FORESEEN - 1)
            pipe.zrange(self._key(lane, "claims"), 0, -1)
            pipe.lrange(self._key(lane, "ended"), 0, -1)
            pipe.hgetall(self._key(lane, "usage"))
            ids, claims, ended, usage = await pipe.execute()
        slices = Counter(_batch_of(member) for member in claims)
        model, _, pool = lane.rpartition("@")
        inside = await self._engines.rows_inside({lane, f"{model}@{job.runs_on or pool}"})
        running: list[BatchLoad] = []
        for first in range(0, len(ids), _BATCHES):
            some = ids[first : first + _BATCHES]
            async with self._redis.pipeline(transaction=False) as pipe:
                for batch_id in some:
                    fields = (*_LOAD_FIELDS, *rows_left_fields(lane))
                    pipe.hmget(f"{self._namespace}batch:{batch_id}", *fields)
                running += [
                    _load(batch_id, lane, record, slices[batch_id])._replace(
                        in_engine=inside.get(batch_id)
                    )
                    for batch_id, record in zip(some, await pipe.execute(), strict=True)
                    # The batch may have been forgotten meanwhile.
                    if record[0] is not None
                ]
        return LaneOutlook(
            pace=pace,
            seats=max(1, job.seats),
            running=running,
            ended=[_ended(text) for text in ended],
            starts_in=starts_in(job.to_start(), engine, now=time.time()),
            usages=to_usages(usage),
        )

    async def cost(self, lane: str) -> LaneCost:
        """What the lane has learned of its costs."""
        names = ("micros", "tokens", "error")
        micros, tokens, error = await self._redis.hmget(self._key(lane, "cost"), names)
        if not float(tokens or 0):
            return LaneCost()
        return LaneCost(float(micros) / float(tokens), None if error is None else float(error))

    async def claimed_count(self, lane: str) -> int:
        """How many slices of the lane are claimed."""
        return await self._redis.zcard(self._key(lane, "claims"))

    async def ready_count(self, lane: str) -> int:
        """How many slices of the lane are ready to be claimed."""
        return await self._redis.zcard(self._key(lane, "ready"))

    async def suspects_count(self, lane: str) -> int:
        """How many slices wait to be run alone because an engine died with them."""
        return await self._redis.zcard(self._key(lane, "suspects"))

    async def candidates(
        self,
        lane: str,
        *,
        slices_per_batch: int,
        among: Sequence[str] | None = None,
        newest: int | None = None,
    ) -> list[ReadySlice]:
        """The lane's ready slices, in order, and the next pending slices of batches that wait.

        However many batches wait, they include the most urgent ones of each tenant and those whose
        windows close soonest. `newest` takes only so many of those that came last. `among` names
        the batches instead, and leaves out what is ready.
        """
        ready: list[str] = []
        if newest is not None:
            ready, among = await self._to_add(lane, newest)
        elif among is None:
            ready, among = await self._to_choose_from(lane)
        ids = list(dict.fromkeys([*among, *(_batch_of(member) for member in ready)]))
        async with self._redis.pipeline(transaction=False) as pipe:
            for batch_id in ids:
                fields = (*_CANDIDATE_FIELDS, *rows_left_fields(lane), f"claimed_at:{lane}")
                pipe.hmget(f"{self._namespace}batch:{batch_id}", *fields)
            records = await pipe.execute()
        batches = {
            id_: record
            for id_, record in zip(ids, records, strict=True)
            if record[0] == Status.IN_PROGRESS
        }
        wanted = defaultdict[str, list[str]](list)
        for member in ready:
            wanted[_batch_of(member)].append(member.rpartition(":")[2])
        are_ready = {id_: frozenset(indexes) for id_, indexes in wanted.items()}
        waiting = [id_ for id_ in among if id_ in batches]
        async with self._redis.pipeline(transaction=False) as pipe:
            for batch_id in waiting:
                _, plan, *_ = record = batches[batch_id]
                key = pending_key(batch_id, plan, record[_LANES].split(), lane)
                pipe.zrange(f"{self._namespace}{key}", 0, slices_per_batch - 1)
            for batch_id, indexes in zip(waiting, await pipe.execute(), strict=True):
                wanted[batch_id] += indexes
        asked = [(id_, indexes) for id_, indexes in wanted.items() if indexes and id_ in batches]
        async with self._redis.pipeline(transaction=False) as pipe:
            for batch_id, indexes in asked:
                pipe.hmget(f"{self._namespace}plan:{batch_id}:{batches[batch_id][1]}", indexes)
            plans = await pipe.execute()
        found = {
            f"{batch_id}:{index}": _candidate(
                batch_id,
                batches[batch_id],
                int(index),
                to_slice(text),
                is_ready=index in are_ready.get(batch_id, ()),
            )
            for (batch_id, indexes), texts in zip(asked, plans, strict=True)
            for index, text in zip(indexes, texts, strict=True)
            if text is not None
        }
        first = [found.pop(member) for member in ready if member in found]
        return [*first, *found.values()]

    async def _to_add(self, lane: str, newest: int) -> tuple[list[str], list[str]]:
        """The ready slices, and the ids of the batches that came last."""
        async with self._redis.pipeline(transaction=False) as pipe:
            pipe.zrange(self._key(lane, "ready"), 0, -1)
            pipe.zrevrange(self._key(lane, "waiting"), 0, newest - 1)
            ready, waiting = await pipe.execute()
        return ready, waiting

    async def _to_choose_from(self, lane: str) -> tuple[list[str], list[str]]:
        """The ready slices, and the ids of about `_BATCHES` waiting batches at most."""
        async with self._redis.pipeline(transaction=False) as pipe:
            pipe.zrange(self._key(lane, "ready"), 0, -1)
            pipe.zrange(self._key(lane, "waiting"), 0, _BATCHES - 1)
            pipe.zcard(self._key(lane, "waiting"))
            ready, waiting, count = await pipe.execute()
        if count <= len(waiting):
            return ready, waiting
        # A random choice if there are too many: each gets its turn within a few rounds.
        tenants = await self._redis.srandmember(self._key(lane, "tenants"), _TENANTS)
        closing = await self._redis.zrange(f"{self._namespace}deadlines", 0, _CLOSING - 1)
        async with self._redis.pipeline(transaction=False) as pipe:
            for tenant in tenants:
                key = self._key(lane, f"waiting:{tenant}")
                pipe.zrange(key, 0, max(1, _BATCHES // len(tenants)) - 1)
            pipe.zmscore(self._key(lane, "waiting"), closing or [""])
            *chosen, scores = await pipe.execute()
        urgent = [id_ for id_, score in zip(closing, scores, strict=False) if score is not None]
        # The oldest of all are always included.
        return ready, list(dict.fromkeys([*urgent, *waiting[:_OLDEST], *chain(*chosen)]))

    async def feed(self, lane: str, members: list[str], *, returned: Sequence[str] = ()) -> int:
        """Put the ready list into this order (at most 100 members), and make `returned` pending.

        Returns how many were added.
        """
        fed: int = await self._scripts.run("feed", lane, len(members), *members, *returned)
        return fed

    async def served(self, lane: str) -> dict[str, float]:
        """Tokens per unit of weight that each tenant has had of the lane; the measure of its share.

        What is claimed counts as predicted, and what is committed with the tokens that the engine
        computed: those of prompts that were not cached, and those of answers.
        """
        served = await self._redis.hgetall(self._key(lane, "served"))
        return {tenant: float(tokens) for tenant, tokens in served.items() if tenant}

    async def forget_served(self, lane: str) -> None:
        """Reset the shares, because nobody is owed anything on an idle lane."""
        await self._redis.delete(self._key(lane, "served"), self._key(lane, "claimed"))

    async def set_weights(self, weights: Mapping[str, float]) -> None:
        """Set the weights of tenants on all lanes; of those that are not named it is 1."""
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.delete(f"{self._namespace}weights")
            if weights:
                pipe.hset(f"{self._namespace}weights", mapping=weights)
            await pipe.execute()

    async def job(self, lane: str) -> JobRecord:
        """The lane's job. Its id is empty if there is none."""
        fields = await self._redis.hgetall(self._key(lane, "job"))
        return JobRecord(
            id=fields.get("id", ""),
            opened_at=int(fields.get("opened_at_ms", 0)) / 1000,
            beat_at=int(fields.get("beat_at_ms", 0)) / 1000,
            rows_wanted=int(fields.get("rows_wanted", 0)),
            rows=int(fields.get("rows", 0)),
            executions=int(fields.get("executions", 0)),
            rate=float(fields.get("rate", 0)),
            runs_on=fields.get("runs_on", ""),
            full=tuple(fields.get("full", "").split()),
            spills_at=float(fields.get("spills_at", 0)),
            deaths=int(fields.get("deaths", 0)),
            tokens=int(fields.get("tokens", 0)),
            token_rate=float(fields.get("token_rate", 0)),
            first_result_at=int(fields.get("first_result_ms", 0)) / 1000,
            is_warm=fields.get("is_warm") == "1",
            warm_start=float(fields.get("warm_start", 0)),
            cold_start=float(fields.get("cold_start", 0)),
            pace=to_pace(fields.get("pace", "")),
            seats=int(fields.get("seats", 0)),
        )

    async def open_job(self, lane: str, old: str, new: str) -> str:
        """Make `new` the lane's job if `old` still is. Returns the current job."""
        current: str = await self._scripts.run("open_job", lane, old, new)
        return current

    async def close_job(self, lane: str, job: str) -> bool:
        """Close an idle lane job. Returns False while the lane has work."""
        return bool(await self._scripts.run("close_job", lane, job))

    async def done(self, lane: str) -> dict[str, Done]:
        """What the lane's jobs have ever done, by kind of row."""
        counts = await self._redis.hgetall(self._key(lane, "done"))
        return done_by_kind({name: int(count) for name, count in counts.items()})

    async def beat(self, lane: str, job: str, *, rows_wanted: int, **fields: float | str) -> bool:
        """Record a lane job's heartbeat and the rows it wants. False if it was superseded."""
        return bool(await self._scripts.run("beat", lane, job, rows_wanted, *pairs(fields)))

    async def fail(self, lane: str, reason: str, *, job: str = "") -> bool:
        """Record why the lane's engine cannot start. The dispatcher then fails its batches.

        Returns False if the lane has another job, which may have a corrected catalog.
        """
        return bool(await self._scripts.run("fail_engine", lane, job, reason))

    async def failure(self, lane: str) -> str | None:
        """Why the engine cannot start, until the dispatcher has handled it."""
        return await self._redis.hget(self._key(lane, "failure"), "reason")

    async def clear_failure(self, lane: str) -> None:
        """Clear the failure after failing the lane's batches, so that new ones are tried."""
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.hdel(self._key(lane, "job"), "deaths")
            pipe.delete(self._key(lane, "failure"))
            await pipe.execute()

    async def lost_inputs(self, lane: str) -> list[str]:
        """Ids of batches that the lane job found without their input."""
        return sorted(await self._redis.smembers(self._key(lane, "lost")))

    async def forget_lost_input(self, lane: str, batch_id: str) -> None:
        """Call it once the batch has failed."""
        await self._redis.srem(self._key(lane, "lost"), batch_id)

    def _key(self, lane: str, what: str) -> str:
        return f"{self._namespace}lane:{lane}:{what}"


def rows_left_fields(lane: str) -> tuple[str, ...]:
    """The fields of a batch's record that `rows_left` takes."""
    return "total", "completed", "failed", f"rows_left:{lane}"


def rows_left(
    total: str | None, completed: str | None, failed: str | None, left: str | None
) -> int:
    """How many rows a batch still has to run on a lane. `left` is set if it has several lanes."""
    if left is not None:
        return int(left)
    return max(0, int(total or 0) - int(completed or 0) - int(failed or 0))


def _batch_of(member: str) -> str:
    return member.rpartition(":")[0]


def _pace_of_rates(job: JobRecord) -> Pace:
    """What the rates alone tell of the engine, before it has a pace."""
    # They tell what others have on it, too, so they are rounded.
    rows = rounded_rate(job.rate)
    tokens = rounded_rate(job.token_rate) or rows
    return Pace({"": KindPace(rows, tokens, tokens, 1.0)}) if rows else Pace()


def _load(batch_id: str, lane: str, record: Sequence[str | None], claimed: int) -> BatchLoad:
    """What the batch has on the lane, where so many of its slices are claimed."""
    named = dict(zip(_LOAD_FIELDS, record, strict=False))
    lanes = (named["lane"] or lane).split()
    total, slices, priority, expires_at, input_, cached, output = (
        int(named[name] or 0) for name in _LOAD_FIELDS[_LOAD_FIELDS.index("total") :]
    )
    left = rows_left(*record[len(_LOAD_FIELDS) :])
    # Batches of earlier versions have no tokens by lane.
    parts = (named["lane_tokens"] or "").split()
    tokens, rows = 0, total
    if len(parts) == len(lanes):
        tokens, rows = map(int, parts[lanes.index(lane)].split("/"))
    return BatchLoad(
        id=batch_id,
        tenant=named["tenant"] or "",
        kind=kind_of(named["endpoint"] or "", tokens, rows) if tokens else "",
        rows=max(rows, left),
        rows_left=left,
        rows_claimed=claimed * total / slices if slices else 0.0,
        tokens=tokens,
        # What was used is not counted by lane.
        used=input_ - cached + output if len(lanes) == 1 else None,
        priority=priority,
        expires_at=expires_at,
        lanes=len(lanes),
    )


_foreseen = msgspec.json.Decoder(Foreseen)


def _ended(text: str) -> Ended:
    at_ms, _, foreseen = text.partition(" ")
    return _foreseen.decode(foreseen).ended(int(at_ms) / 1000)


def _candidate(
    batch_id: str, record: Sequence[str], index: int, slice_: Slice, *, is_ready: bool
) -> ReadySlice:
    _, _, _, tenant, priority, created_at, expires_at, *left, claimed_at = record
    return ReadySlice(
        batch_id=batch_id,
        index=index,
        tenant=tenant,
        priority=int(priority),
        created_at=int(created_at),
        expires_at=int(expires_at),
        tokens=slice_.tokens,
        rows=slice_.rows,
        is_ready=is_ready,
        rows_left=rows_left(*left),
        claimed_at=int(claimed_at or 0),
    )
