"""What batches and rows take of Redis: while they live, at their end, and when they have left."""

import asyncio
import secrets
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from benchmarks.figures import Figure, bounded
from cli.servers import Redis
from shared import ids
from shared.lifecycle import Event
from shared.slices import Part, Slice, SliceUsage
from shared.state import FileRecord, NewBatch, Quota, Start, State
from shared.state.away import StoredRecord
from shared.state.client import Client
from shared.state.state import NAMESPACE
from shared.storage import Stored

T = TypeVar("T")

_LANE, _JOB, _TENANT = "m@pool", "job", "acme"
_TOGETHER = 50
_ROWS_A_SLICE = 128
_NO_QUOTA = Quota(10**9, 10**12)
#: Bytes for a batch of one row: while it runs, when it has ended, and a day after it has left, with
#: and without its files.
LIVE, ENDED, LEFT, LEFT_ALONE = 5_500, 11_000, 2_700, 500
#: Bytes for 1,000 rows of a large batch: while they wait, and with their results.
WAITING_ROWS, DONE_ROWS = 2_500, 5_000


def redis_bytes(*, batches: int = 2_000, rows: int = 128_000) -> list[Figure]:
    """Bytes of Redis for each of `batches` batches of one row, and for 1,000 of `rows` rows."""
    with tempfile.TemporaryDirectory(prefix="batchyard-bytes-") as folder:
        server = Redis(Path(folder), secrets.token_urlsafe(16))
        server.start()
        try:
            return asyncio.run(_measured(server.url, batches, rows))
        finally:
            server.kill()


async def _measured(url: str, batches: int, rows: int) -> list[Figure]:
    redis = Client.from_url(url, decode_responses=True, socket_timeout=60)
    # Nothing here need outlive Redis.
    await redis.config_set("appendonly", "no")
    state = State(url)
    try:
        await state.lanes.open_job(_LANE, "", _JOB)
        # The first ones bring what is there once.
        await _finish(state, await _start(state, 0, 1))
        small = await _small(state, redis, batches)
        large = await _large(state, redis, rows)
    finally:
        await redis.aclose()
        await state.close()
    return [
        bounded(name, value, 0, unit="bytes of Redis", goal=goal)
        for (name, goal), value in zip(
            (
                ("a running batch of one row, with its input file", LIVE),
                ("the same when it has ended, with its output file", ENDED),
                ("the same a day after it has left, with its files", LEFT),
                ("the same without its files", LEFT_ALONE),
                ("1,000 rows that wait", WAITING_ROWS),
                ("1,000 rows with results, until a day after the end", DONE_ROWS),
            ),
            [*small, *large],
            strict=True,
        )
    ]


async def _small(state: State, redis: Client, count: int) -> list[float]:
    """Bytes of a batch that runs, has ended, has left, and has lost its files."""
    before = await _used(redis)
    made = await _start(state, 1, 1 + count)
    found = [await _used(redis)]
    await _finish(state, made)
    found.append(await _used(redis))
    await _leave(state, redis)
    found.append(await _used(redis))
    for file_ids in _by(_files(made), 500):
        await redis.unlink(*(f"{NAMESPACE}file:{one}" for one in file_ids))
    await redis.delete(f"{NAMESPACE}files:{_TENANT}", f"{NAMESPACE}expiring")
    found.append(await _used(redis))
    return [(used - before) / count for used in found]


async def _large(state: State, redis: Client, rows: int) -> list[float]:
    """Bytes of 1,000 rows that wait, and that have results."""
    before = await _used(redis)
    [batch_id] = await _start(state, -1, 0, rows=rows)
    waiting = await _used(redis)
    await _run(state, [batch_id], rows)
    done = await _used(redis)
    return [1000 * (used - before) / rows for used in (waiting, done)]


async def _start(state: State, first: int, end: int, *, rows: int = 1) -> list[str]:
    """Batches whose inputs came in messages."""
    made = []
    for numbers in _by(range(first, end), _TOGETHER):
        prefix = f"packs/{numbers[0]}/"
        await state.files.reserve(prefix, seconds=1000)
        batches = [_new(number, rows) for number in numbers]
        outcomes = await state.batches.accept_pack(prefix, batches)
        assert set(outcomes) == {"started"}
        made += [one.id for one in batches]
    return made


def _new(number: int, rows: int) -> NewBatch:
    batch_id = ids.batch_id(_TENANT, f"message-{number}")
    file_id, now, key = ids.input_file_id(batch_id), int(time.time()), f"packs/{number}/1.jsonl"
    file = FileRecord.stored(
        file_id,
        _TENANT,
        Stored(key, "0" * 32, 400),
        bucket="batchyard",
        created_at=now,
        seconds=86_400,
        filename="input-0123456789abcdef.jsonl",
        purpose="batch",
    )
    fields: dict[str, str | int] = {
        "id": batch_id,
        "tenant": _TENANT,
        "message_id": f"message-{number}",
        "door": "bus",
        "endpoint": "/v1/chat/completions",
        "input_file_id": file_id,
        "bucket": "batchyard",
        "key": key,
        "etag": "0" * 32,
        "size": 400,
        "sha256": "0" * 64,
        "completion_window": "24h",
        "created_at": now,
        "expires_at": now + 86_400,
        "priority": 5,
        "metadata": '{"job": "nightly", "part": "7"}',
        "traceparent": f"00-{'0' * 32}-{'0' * 16}-01",
    }
    slices = [
        Slice(100 * row, 100 * (row + _ROWS_A_SLICE), row, min(_ROWS_A_SLICE, rows - row), 500)
        for row in range(0, rows, _ROWS_A_SLICE)
    ]
    counts: dict[str, str | int] = {
        "slices_total": len(slices),
        "total": rows,
        "lane": _LANE,
        "model": "m",
    }
    plan = Start(secrets.token_hex(4), _LANE, slices, counts, _NO_QUOTA)
    return NewBatch(batch_id, "0" * 64, fields, file.to_fields(), start=plan)


async def _run(state: State, batch_ids: list[str], rows: int) -> None:
    """Commit all slices of these batches."""
    slices = -(-rows // _ROWS_A_SLICE)
    members = [f"{batch_id}:{index}" for batch_id in batch_ids for index in range(slices)]
    for some in _by(members, 100):
        await state.lanes.feed(_LANE, list(some))
        while claims := await state.claims.take(
            _LANE, _JOB, lease_seconds=600, slices=100, rows=100_000, begun=True
        ):
            for claim in claims:
                done = claim.slice.rows
                usage = SliceUsage(done, 0, 30 * done, 0, 20 * done, 0)
                key = f"batches/{claim.batch_id}/parts/{claim.index:06}-{claim.epoch}.jsonl"
                spent = f"pool={1000 * done}"
                part = Part(key, "0" * 32, 500 * done, 0, done, usage, "0" * 11, spent=spent)
                assert await state.claims.commit(claim, part) == "ok"


async def _finish(state: State, batch_ids: list[str]) -> None:
    """Run these batches of one row to their ends."""
    await _run(state, batch_ids, 1)
    for batch_id in batch_ids:
        file_id, now = ids.output_file_id(batch_id, "output"), int(time.time())
        key = f"batches/{batch_id}/parts/000000-1.jsonl"
        file = FileRecord.stored(
            file_id,
            _TENANT,
            Stored(key, "0" * 32, 500),
            bucket="batchyard",
            created_at=now,
            seconds=86_400,
            filename=f"{batch_id}_output.jsonl",
            purpose="batch_output",
        )._replace(sha256="0" * 64)
        place = f'{{"bucket":"batchyard","key":"{key}","etag":"{"0" * 32}","size":500}}'
        fields = {"completed": 1, "failed": 0, "output_file_id": file_id, "output_object": place}
        ending = {"files": [file.to_fields()], "fields": fields}
        await state.conclude(batch_id, Event.OUTPUT_COMMITTED, **ending)  # type: ignore[arg-type]  # each has its own type


async def _leave(state: State, redis: Client) -> None:
    """Let all ended batches leave, a day after their end. Nothing is written to S3."""

    async def nothing(batch_id: str, edition: int) -> StoredRecord | None:
        raise AssertionError(f"{batch_id} is read in edition {edition}")

    state.read_records_by(nothing)
    while batch_ids := await state.away.due(time.time() + 1, limit=_TOGETHER):
        for stored, edition in await state.away.read_here(batch_ids):
            assert await state.away.leave(stored, edition) == "left"
    for what in ("plan", "parts", "epochs", "commits"):
        keys = [key async for key in redis.scan_iter(f"{NAMESPACE}{what}:*", count=1000)]
        await redis.unlink(*keys)
    await redis.delete(f"{NAMESPACE}garbage")


def _by(many: Sequence[T], count: int) -> Iterator[Sequence[T]]:
    return (many[first : first + count] for first in range(0, len(many), count))


def _files(batch_ids: list[str]) -> list[str]:
    outputs = [ids.output_file_id(one, "output") for one in batch_ids]
    return [*map(ids.input_file_id, batch_ids), *outputs]


async def _used(redis: Client) -> int:
    """Bytes of all keys, without what a relay would have published."""
    outboxes = (f"{NAMESPACE}outbox:{name}" for name in ("events", "replies", "submissions"))
    await redis.delete(*outboxes)
    keys = [key async for key in redis.scan_iter("*", count=1000)]
    used = 0
    for some in _by(keys, 500):
        async with redis.pipeline(transaction=False) as pipe:
            for key in some:
                # Of every member, and not of a few.
                pipe.memory_usage(key, samples=0)
            used += sum(found or 0 for found in await pipe.execute())
    return used
