"""Counts of the whole fleet, for monitoring."""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, get_args

import msgspec

from shared.engine_starts import Start
from shared.engines import EngineRecord, ReplicaNumbers
from shared.lifecycle import FINAL, Status
from shared.state.batch_record import BatchRecord
from shared.state.client import Client
from shared.state.outbox import Box

NO_REPLICAS: Mapping[str, Sequence[ReplicaNumbers]] = {}
NO_STARTS: Mapping[str, Start] = {}
#: Batches that are shown one by one.
MAX_RUNNING = 20
#: For how long what a replica has told is shown as what is.
_FRESH_SECONDS = 30.0


class Waiting(NamedTuple):
    """How many there are, and since when the oldest waits (Unix seconds; None without any)."""

    number: int
    since: float | None


class Total(NamedTuple):
    """A counter that only grows. `whose` is a tenant, a reason, or `-`."""

    what: str
    lane: str
    whose: str
    number: int


class LaneCount(NamedTuple):
    """The work of a lane. Times are Unix seconds, 0 if it never happened."""

    batches: int
    ready_slices: int
    claimed_slices: int
    #: Rows finished by its current lane job.
    rows: int
    job_beat_at: float
    has_failed: bool
    #: A second, 0 before it was measured.
    row_rate: float = 0.0
    token_rate: float = 0.0
    #: How far predictions of costs were off lately, as a part of the real ones.
    cost_error: float | None = None


class RunningBatch(NamedTuple):
    """How far a batch is. Times are Unix seconds."""

    id: str
    tenant: str
    total: int
    completed: int
    failed: int
    input_tokens: int
    output_tokens: int
    gpu_micros: int
    expires_at: int
    #: The predicted P50 and P80 of its end; None while nobody knows.
    finish_at: int | None = None
    finish_p80_at: int | None = None


class FleetCounts(NamedTuple):
    """All counts, taken at `at` on Redis's clock (Unix seconds)."""

    at: float
    live: Mapping[Status, Waiting]
    #: Since Redis was first used for this fleet.
    ended: Mapping[Status, int]
    outboxes: Mapping[Box, Waiting]
    lanes: Mapping[str, LaneCount]
    #: When the next completion window of a live batch closes; None if there is none.
    next_window_at: float | None
    #: When the earliest webhook delivery is due; None if there is none.
    webhooks_due_at: float | None
    #: Memory that Redis uses, and its limit: its own `maxmemory`, or else the machine's memory.
    memory_bytes: int
    max_memory_bytes: int
    #: Since Redis was first used for this fleet.
    totals: Sequence[Total] = ()
    engines: Sequence[EngineRecord] = ()
    #: Those that have run longest, `MAX_RUNNING` at most.
    running: Sequence[RunningBatch] = ()
    #: Of each engine those that were asked in the last half minute.
    replicas: Mapping[str, Sequence[ReplicaNumbers]] = NO_REPLICAS
    #: How the last start of each engine went, where its replica has told it of late.
    starts: Mapping[str, Start] = NO_STARTS


class _Told(NamedTuple):
    """What a replica has counted when it was asked, in Unix seconds."""

    at: float
    numbers: ReplicaNumbers


class Census:
    """The noun `census` of State. Always takes two round trips."""

    def __init__(self, redis: Client, namespace: str) -> None:
        self._redis = redis
        self._namespace = namespace

    async def take(self) -> FleetCounts:
        """Count now."""
        ns = self._namespace
        statuses = [status for status in Status if status not in FINAL]
        boxes: tuple[Box, ...] = get_args(Box)
        async with self._redis.pipeline(transaction=False) as pipe:
            pipe.time()
            pipe.info("memory")
            pipe.hgetall(f"{ns}ended")
            pipe.smembers(f"{ns}lanes")
            pipe.hgetall(f"{ns}totals")
            pipe.hgetall(f"{ns}engines")
            for key in ("deadlines", "webhooks-due"):
                pipe.zrange(f"{ns}{key}", 0, 0, withscores=True)
            pipe.zrange(f"{ns}status:{Status.IN_PROGRESS}", 0, MAX_RUNNING - 1)
            for status in statuses:
                pipe.zcard(f"{ns}status:{status}")
                pipe.zrange(f"{ns}status:{status}", 0, 0, withscores=True)
            for box in boxes:
                pipe.xlen(f"{ns}outbox:{box}")
                pipe.xrange(f"{ns}outbox:{box}", count=1)
            answered = await pipe.execute()
        (seconds, micros), memory, ended, lanes, totals, engines, window, due, ids, *rest = answered
        answers = iter(rest)
        live = {status: Waiting(next(answers), _first(next(answers))) for status in statuses}
        outboxes = {box: Waiting(next(answers), _written(next(answers))) for box in boxes}
        due_ms = _first(due)
        named = sorted(lane for lane in engines if lane)
        lane_counts, told, running = await asyncio.gather(
            self._lanes(sorted(lanes)), self._told(named), self._running(ids)
        )
        records = [msgspec.json.decode(engines[lane], type=EngineRecord) for lane in named]
        return FleetCounts(
            at=seconds + micros / 1e6,
            live=live,
            ended={status: int(ended.get(status, 0)) for status in Status if status in FINAL},
            outboxes=outboxes,
            lanes=lane_counts,
            next_window_at=_first(window),
            webhooks_due_at=None if due_ms is None else due_ms / 1000,
            memory_bytes=memory["used_memory"],
            max_memory_bytes=memory["maxmemory"] or memory["total_system_memory"],
            totals=[_total(name, number) for name, number in sorted(totals.items())],
            engines=records,
            replicas={lane: list(_fresh(found, seconds)) for lane, found in told.items()},
            running=running,
            starts=dict(_starts(records, told)),
        )

    async def _lanes(self, names: list[str]) -> dict[str, LaneCount]:
        async with self._redis.pipeline(transaction=False) as pipe:
            for name in names:
                lane = f"{self._namespace}lane:{name}:"
                for what in ("active", "ready", "suspects", "claims"):
                    pipe.zcard(lane + what)
                pipe.hmget(lane + "job", "rows", "beat_at_ms", "rate", "token_rate")
                pipe.exists(lane + "failure")
                pipe.hget(lane + "cost", "error")
            answers = iter(await pipe.execute())
        counts = {}
        for name in names:
            batches, ready, suspects, claimed, job, failure, error = (
                next(answers) for _ in range(7)
            )
            rows, beat, row_rate, token_rate = job
            counts[name] = LaneCount(
                batches,
                ready + suspects,
                claimed,
                int(rows or 0),
                int(beat or 0) / 1000,
                bool(failure),
                float(row_rate or 0),
                float(token_rate or 0),
                None if error is None else float(error),
            )
        return counts

    async def _running(self, ids: list[str]) -> list[RunningBatch]:
        async with self._redis.pipeline(transaction=False) as pipe:
            for batch_id in ids:
                pipe.hgetall(f"{self._namespace}batch:{batch_id}")
            # One may have been forgotten meanwhile.
            return [_running(BatchRecord(fields)) for fields in await pipe.execute() if fields]

    async def _told(self, lanes: list[str]) -> dict[str, list[_Told]]:
        async with self._redis.pipeline(transaction=False) as pipe:
            for lane in lanes:
                pipe.hvals(f"{self._namespace}lane:{lane}:numbers")
            answers = await pipe.execute()
        return {
            lane: [_parsed(text) for text in found]
            for lane, found in zip(lanes, answers, strict=True)
        }


def _total(name: str, number: str) -> Total:
    what, lane, whose = name.split(" ")
    return Total(what, lane, whose, int(number))


def _running(record: BatchRecord) -> RunningBatch:
    batch = record.to_openai()
    counts, cost, told = batch.request_counts, batch.cost, batch.predicted
    return RunningBatch(
        record.id,
        record.tenant,
        counts.total,
        counts.completed,
        counts.failed,
        batch.usage.input_tokens,
        batch.usage.output_tokens,
        round(1_000_000 * cost.gpu_seconds) if cost else 0,
        batch.expires_at,
        told.finish_at if told else None,
        told.finish_p80_at if told else None,
    )


def _parsed(text: str) -> _Told:
    at_ms, _, numbers = text.partition(" ")
    return _Told(int(at_ms) / 1000, msgspec.json.decode(numbers, type=ReplicaNumbers))


def _fresh(told: Iterable[_Told], now: float) -> Iterator[ReplicaNumbers]:
    return (numbers for at, numbers in told if at > now - _FRESH_SECONDS)


def _starts(
    engines: Iterable[EngineRecord], told: Mapping[str, Sequence[_Told]]
) -> Iterator[tuple[str, Start]]:
    for engine in engines:
        for _, numbers in told[engine.lane]:
            if numbers.replica == engine.last_start_replica and numbers.start is not None:
                yield engine.lane, numbers.start


def _first(found: list[tuple[str, float]]) -> float | None:
    return float(found[0][1]) if found else None


def _written(entries: list[tuple[str, object]]) -> float | None:
    # An entry's id begins with the time at which it was written.
    return int(entries[0][0].partition("-")[0]) / 1000 if entries else None
