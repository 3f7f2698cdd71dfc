"""`python -m benchmarks.finaliser_memory`: what it takes to finish batches of 200 MB.

The parts of each lie in a real S3, a hundred of 2 MB or as `--row-kib` makes them; a separate
process finishes all `--batches` at once, and reports its maximum growth in memory, and how many MB
a second of its core is enough for.
"""

import argparse
import asyncio
import json
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from cli.servers import CephS3, Redis
from dispatcher.finaliser import Finaliser
from shared import ids
from shared.lifecycle import Event, Status
from shared.slices import Claim, Part, Slice, SliceUsage
from shared.state import State
from shared.storage import Storage, Stored

BATCH_KIB = 200 * 1024
ROWS_A_PART = 128
#: Of each batch that is finished.
GOAL_MEBIBYTES = 64
MEBIBYTE = 1024 * 1024
_LANE = "m@gpu"
_SMALL = ids.batch_id("acme", "small")


def _large(batches: int) -> list[str]:
    return [ids.batch_id("acme", f"large-{number}") for number in range(batches)]


def _row(batch_id: str, row: int, size: int) -> bytes:
    head = f'{{"id":"{ids.result_id(batch_id, row)}","custom_id":"row-{row}","response":"'
    return head.encode() + b"x" * (size - len(head) - 3) + b'"}\n'


async def plan(
    state: State, storage: Storage, batch_id: str, parts: int, *, input_: Stored | None = None
) -> None:
    """Make a batch with so many slices; if its input is there, each has the same part of it."""
    rows = parts * ROWS_A_PART
    key, etag, size = input_ or Stored("none", "e", parts)
    fields: dict[str, str | int] = {
        "id": batch_id,
        "tenant": "acme",
        "endpoint": "/v1/chat/completions",
        "input_file_id": "file-1",
        "bucket": storage.bucket,
        "key": key,
        "etag": etag,
        "size": size,
        "completion_window": "24h",
        "created_at": 1,
        "expires_at": 2**31,
        "priority": 5,
    }
    await state.batches.accept(batch_id, "print", fields, input_file=None, submission=None)
    each = size // parts
    slices = [
        Slice(index * each, (index + 1) * each, index * ROWS_A_PART, ROWS_A_PART, 1)
        for index in range(parts)
    ]
    await state.slices.plan(batch_id, "p", 0, slices)
    await state.apply(
        batch_id,
        Event.INPUT_ACCEPTED,
        {"plan": "p", "model": "m", "lane": _LANE, "total": rows, "slices_total": parts},
    )
    await state.lanes.feed(_LANE, [f"{batch_id}:{index}" for index in range(parts)])


async def planned(
    state: State, storage: Storage, batch_id: str, parts: int
) -> AsyncIterator[Claim]:
    """A new batch's slices, each claimed."""
    await plan(state, storage, batch_id, parts)
    await state.lanes.open_job(_LANE, "", "job")
    while claims := await state.claims.take(
        _LANE, "job", lease_seconds=600, slices=100, rows=100 * ROWS_A_PART
    ):
        for claim in claims:
            yield claim


async def commit(
    state: State, storage: Storage, claim: Claim, row_bytes: int, *, has_errors: bool = True
) -> None:
    """Commit the slice; every tenth row is an error, or none."""
    batch_id, first = claim.batch_id, claim.slice.first_row
    numbers = range(first, first + ROWS_A_PART)
    failed = {row for row in numbers if has_errors and not row % 10}
    output = b"".join(_row(batch_id, row, row_bytes) for row in numbers if row not in failed)
    error = b"".join(_row(batch_id, row, row_bytes) for row in sorted(failed))
    key = f"batches/{batch_id}/parts/{claim.index:06d}-{claim.epoch}.jsonl"
    etag = (await storage.put(key, output + error)).etag
    part = Part(key, etag, len(output), len(error), ROWS_A_PART, SliceUsage(ROWS_A_PART))
    await state.claims.commit(claim, part)


@contextmanager
def own_servers(bucket: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """A Redis and an S3 server that nothing else uses: Redis's URL, and what `Storage` is given."""
    with tempfile.TemporaryDirectory(prefix=f"{bucket}-") as folder:
        keys = secrets.token_hex(10), secrets.token_hex(20)
        redis = Redis(Path(folder), secrets.token_hex(8))
        s3 = CephS3(Path(folder), *keys)
        try:
            redis.start()
            s3.start()
            yield redis.url, (s3.endpoint, *keys, bucket)
        finally:
            redis.kill()
            s3.kill()


async def _finish(redis_url: str, batches: int, *where: str) -> None:
    """Finish a small batch to warm up, then the large ones; print its growth and seconds."""
    state, storage = State(redis_url), Storage(*where)
    finaliser = Finaliser(state, storage, output_seconds=60)
    await finaliser.finish(_SMALL)
    process = psutil.Process()
    before = peak = process.memory_info().rss
    began, used = time.perf_counter(), time.process_time()
    finishing = asyncio.gather(*map(finaliser.finish, _large(batches)))
    while not finishing.done():
        await asyncio.wait([finishing], timeout=0.05)
        peak = max(peak, process.memory_info().rss)
    await finishing
    seconds, used = time.perf_counter() - began, time.process_time() - used
    ends = [(await state.batches.get(one)).status for one in _large(batches)]
    is_completed = set(ends) == {Status.COMPLETED}
    print(json.dumps([(peak - before) / MEBIBYTE, seconds, used, is_completed]))
    await state.close()
    storage.close()


async def _prepare(
    redis_url: str, where: tuple[str, ...], parts: int, row_bytes: int, batches: int
) -> None:
    state, storage = State(redis_url), Storage(*where)
    await storage.prepare()
    for batch_id, number in ((_SMALL, 2), *((one, parts) for one in _large(batches))):
        async for claim in planned(state, storage, batch_id, number):
            await commit(state, storage, claim, row_bytes)
    await state.close()
    storage.close()


def main() -> int:
    """Exit code 1 when the growth is above the goal."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=1)
    parser.add_argument("--row-kib", type=int, default=16)
    parser.add_argument("--finish", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.finish:
        redis_url, *where = options.finish
        asyncio.run(_finish(redis_url, options.batches, *where))
        return 0
    parts = max(1, BATCH_KIB // (ROWS_A_PART * options.row_kib))
    with own_servers("finaliser-memory") as (redis_url, own):
        row_bytes = options.row_kib * 1024
        asyncio.run(_prepare(redis_url, own, parts, row_bytes, options.batches))
        command = [sys.executable, "-m", "benchmarks.finaliser_memory"]
        command += ["--batches", str(options.batches), "--finish", redis_url, *own]
        ended = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    growth, seconds, used, is_completed = json.loads(ended.stdout.splitlines()[-1])
    size = options.batches * parts * ROWS_A_PART * options.row_kib / 1024
    goal = options.batches * GOAL_MEBIBYTES
    print(
        f"{size:.0f} MiB in {options.batches} x {parts} parts: finished in {seconds:.1f} s, "
        f"memory grew by {growth:.1f} MiB (goal: at most {goal}); "
        f"{used:.1f} s of a core, {size / used:.0f} MiB for each"
    )
    return 0 if is_completed and growth <= goal else 1


if __name__ == "__main__":
    sys.exit(main())
