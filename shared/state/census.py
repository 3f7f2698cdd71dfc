"""Counts of the whole fleet, for monitoring."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, get_args

import msgspec

from shared.engines import EngineRecord
from shared.lifecycle import FINAL, Status
from shared.state.client import Client
from shared.state.outbox import Box


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
            for status in statuses:
                pipe.zcard(f"{ns}status:{status}")
                pipe.zrange(f"{ns}status:{status}", 0, 0, withscores=True)
            for box in boxes:
                pipe.xlen(f"{ns}outbox:{box}")
                pipe.xrange(f"{ns}outbox:{box}", count=1)
            answered = await pipe.execute()
        (seconds, micros), memory, ended, lanes, totals, engines, window, due, *rest = answered
        answers = iter(rest)
        live = {status: Waiting(next(answers), _first(next(answers))) for status in statuses}
        outboxes = {box: Waiting(next(answers), _written(next(answers))) for box in boxes}
        due_ms = _first(due)
        return FleetCounts(
            at=seconds + micros / 1e6,
            live=live,
            ended={status: int(ended.get(status, 0)) for status in Status if status in FINAL},
            outboxes=outboxes,
            lanes=await self._lanes(sorted(lanes)),
            next_window_at=_first(window),
            webhooks_due_at=None if due_ms is None else due_ms / 1000,
            memory_bytes=memory["used_memory"],
            max_memory_bytes=memory["maxmemory"] or memory["total_system_memory"],
            totals=[_total(name, number) for name, number in sorted(totals.items())],
            engines=[
                msgspec.json.decode(text, type=EngineRecord)
                for lane, text in sorted(engines.items())
                if lane
            ],
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


def _total(name: str, number: str) -> Total:
    what, lane, whose = name.split(" ")
    return Total(what, lane, whose, int(number))


def _first(found: list[tuple[str, float]]) -> float | None:
    return float(found[0][1]) if found else None


def _written(entries: list[tuple[str, object]]) -> float | None:
    # An entry's id begins with the time at which it was written.
    return int(entries[0][0].partition("-")[0]) / 1000 if entries else None
