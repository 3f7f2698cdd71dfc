"""Batches for tests: created with defaults, and brought to any status by legal events."""

import itertools
import secrets
import time
from typing import Any

from redis.asyncio import Redis

from shared.dead_rows import DeadRow
from shared.lifecycle import INITIAL, TRANSITIONS, Event, Status
from shared.slices import Claim, Part, Slice, SliceUsage
from shared.state import State
from shared.storage import Storage

LANE = "m@gpu"
JOB = "job-1"
ROWS_A_SLICE = 10

_numbers = itertools.count()
#: The same for all batches, so that none comes before another by chance.
_CREATED_AT = int(time.time())


def batch_fields(batch_id: str, **changes: Any) -> dict[str, str | int]:
    """The fields that `submission.accept` writes into a record."""
    return {
        "id": batch_id,
        "tenant": "acme",
        "message_id": f"m-{batch_id}",
        "door": "http",
        "endpoint": "/v1/chat/completions",
        "input_file_id": f"file-{batch_id}",
        "bucket": "inputs",
        "key": f"files/{batch_id}",
        "etag": "e",
        "size": 1000,
        "completion_window": "24h",
        "created_at": _CREATED_AT,
        "expires_at": _CREATED_AT + 86_400,
        "priority": 5,
        **changes,
    }


async def validating(state: State, *, submission: str | None = None, **changes: Any) -> str:
    """A new batch."""
    batch_id = f"batch_{next(_numbers):032x}"
    fields = batch_fields(batch_id, **changes)
    await state.batches.accept(batch_id, "print", fields, input_file=None, submission=submission)
    return batch_id


async def submitted(state: State, storage: Storage, body: bytes, **changes: Any) -> str:
    """A new batch over an input of these bytes."""
    key = f"files/{secrets.token_hex(6)}"
    stored = await storage.put(key, body)
    place = {"bucket": storage.bucket, "key": key, "etag": stored.etag, "size": len(body)}
    return await validating(state, **{**place, **changes})


async def in_progress(state: State, *, slices: int = 2, lane: str = LANE, **changes: Any) -> str:
    """A batch whose slices are all pending; `lane` may name several lanes, separated by blanks."""
    batch_id = await validating(state, **changes)
    await accept_input(state, batch_id, slices=slices, lane=lane)
    return batch_id


async def accept_input(state: State, batch_id: str, *, slices: int = 2, lane: str = LANE) -> bool:
    """Plan the batch and let INPUT_ACCEPTED happen to it."""
    lanes = lane.split()
    planned = [new_slice(index, lanes=len(lanes)) for index in range(slices)]
    await state.slices.plan(batch_id, "p", 0, planned, lanes=lanes)
    left = {}
    for number, name in enumerate(lanes) if len(lanes) > 1 else ():
        left[f"slices_left:{name}"] = count = sum(one.lane == number for one in planned)
        left[f"rows_left:{name}"] = count * ROWS_A_SLICE
    return await state.apply(
        batch_id,
        Event.INPUT_ACCEPTED,
        {
            "plan": "p",
            "slices_total": slices,
            "total": slices * ROWS_A_SLICE,
            "lane": lane,
            "model": "m",
            **left,
        },
    )


async def happen(state: State, batch_id: str, event: Event) -> bool:
    """Apply any event, with whatever it needs."""
    if event is Event.INPUT_ACCEPTED:
        return await accept_input(state, batch_id)
    return await state.apply(batch_id, event)


async def in_status(state: State, status: Status, **changes: Any) -> str:
    """A batch brought to `status` by the shortest path that the table allows."""
    batch_id = await validating(state, **changes)
    for event in _way_to(status):
        await happen(state, batch_id, event)
    return batch_id


def new_slice(index: int, *, lanes: int = 1) -> Slice:
    """Slice number `index` of equal slices, which go to the lanes in turn."""
    first_row = index * ROWS_A_SLICE
    return Slice(index * 100, (index + 1) * 100, first_row, ROWS_A_SLICE, 50, index % lanes)


async def feed(state: State, *batch_ids: str, slices: int = 2, lane: str = LANE) -> int:
    """Make all slices of the batches ready, batch by batch."""
    members = [f"{batch_id}:{index}" for batch_id in batch_ids for index in range(slices)]
    return await state.lanes.feed(lane, members)


async def claim(
    state: State,
    *,
    slices: int = 1,
    rows: int = 1000,
    lease_seconds: float = 30,
    job: str = JOB,
    lane: str = LANE,
    begun: bool = True,
) -> list[Claim]:
    """Claim as the lane's job; if the lane has no job, `job` becomes it."""
    await state.lanes.open_job(lane, "", job)
    return await state.claims.take(
        lane, job, lease_seconds=lease_seconds, slices=slices, rows=rows, begun=begun
    )


async def claim_suspects(
    state: State, *, rows: int = 1000, job: str = JOB, lane: str = LANE
) -> list[Claim]:
    """Claim slices that were in an engine when it died."""
    await state.lanes.open_job(lane, "", job)
    return await state.claims.take_suspects(lane, job, lease_seconds=30, rows=rows)


async def claimed(
    state: State, *, slices: int = 2, lane: str = LANE, **changes: Any
) -> list[Claim]:
    """The claims on all slices of one new batch."""
    batch_id = await in_progress(state, slices=slices, lane=lane, **changes)
    await feed(state, batch_id, slices=slices, lane=lane)
    return await claim(state, slices=slices, lane=lane)


def dead_row(claim: Claim, row: int = 0, **changes: Any) -> DeadRow:
    """Row number `row` of the claimed slice, as a dead row."""
    number = claim.slice.first_row + row
    fields = {
        # A result's id begins like its batch's id, which begins alike for all of these.
        "id": f"batch_req_{claim.batch_id[-24:]}{number:08x}",
        "batch_id": claim.batch_id,
        "tenant": claim.tenant,
        "lane": claim.lane,
        "line": number + 1,
        "custom_id": f"row-{number}",
        "deaths": 4,
        "reason": "The engine died.",
        "at": 1_795_165_000,
        "bucket": claim.bucket,
        "key": claim.key,
        "etag": claim.etag,
        "start": claim.slice.start,
        "end": claim.slice.end,
        "place": row,
    }
    return DeadRow(**{**fields, **changes})


def part(claim: Claim, *, failed: int = 0, rows: int | None = None) -> Part:
    """A part with a result for each row of the claimed slice, or for so many of them."""
    rows = claim.slice.rows if rows is None else rows
    usage = SliceUsage(rows - failed, failed, 3 * rows, rows, 2 * rows, 0)
    return Part(f"parts/{claim.index}-{claim.epoch}", "etag", 100, 10 * failed, rows, usage)


async def contents(redis: "Redis[str]", namespace: str) -> dict[str, Any]:
    """Everything in the namespace."""
    found: dict[str, Any] = {}
    async for key in redis.scan_iter(match=f"{namespace}*", count=1000):
        match await redis.type(key):
            case "hash":
                found[key] = await redis.hgetall(key)
            case "zset":
                found[key] = await redis.zrange(key, 0, -1, withscores=True)
            case "set":
                found[key] = await redis.smembers(key)
            case "list":
                found[key] = await redis.lrange(key, 0, -1)
            case "stream":
                found[key] = await redis.xrange(key)
            case _:
                found[key] = await redis.get(key)
    return found


def _way_to(status: Status) -> list[Event]:
    ways: dict[Status, list[Event]] = {INITIAL: []}
    while status not in ways:
        for event, row in TRANSITIONS.items():
            for source in row.sources & ways.keys():
                ways.setdefault(row.target, [*ways[source], event])
    return ways[status]
