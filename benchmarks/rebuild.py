"""`python -m benchmarks.rebuild`: how long a rebuild of 10,000 batches takes, of which 100 run.

A batch of each kind goes its whole way on a real Redis and a real S3; the others are copies of what
these have left in S3, under ids of their own. Then Redis is emptied, and made again by the command
in a process of its own, which says by how much it grew.
"""

import argparse
import asyncio
import json
import resource
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path

from redis.asyncio import Redis as RedisClient

from cli.rebuild.rebuild import Rebuild
from cli.servers import CephS3, Redis
from dispatcher.finaliser import Finaliser
from dispatcher.planning import Planner
from dispatcher.slicing import SliceLimits
from shared import ids
from shared.catalog import load_catalog
from shared.lifecycle import Status
from shared.slices import Part, SliceUsage, label
from shared.state import FileRecord, State
from shared.storage import Storage
from shared.submission import Manifest, accept

_TENANT = "acme"
_ENDPOINT = "/v1/chat/completions"
_CATALOG = "pools:\n  gpu: {resources: {CPU: 1}}\nmodels:\n  m: {pools: [gpu]}\n"
_LANE = "m@gpu"
_ROWS_A_SLICE = 10
#: Rows of a batch that has ended, and of one that runs, half of whose slices have their results.
_FEW, _MANY = 10, 400
_AT_ONCE = 24
_MEBIBYTE = 1024 * 1024


async def _submit(state: State, storage: Storage, name: str, rows: int) -> str:
    request = {"method": "POST", "url": _ENDPOINT, "body": {"model": "m", "messages": []}}
    body = b"".join(
        json.dumps({"custom_id": f"row-{row}", **request}).encode() + b"\n" for row in range(rows)
    )
    file_id = f"file-{name:_<22}"
    key = f"files/{_TENANT}/{file_id}"
    stored, now = await storage.put(key, body), int(time.time())
    file = FileRecord(
        id=file_id,
        tenant=_TENANT,
        bytes=stored.size,
        created_at=now,
        expires_at=None,
        filename="rows.jsonl",
        purpose="batch",
        bucket=storage.bucket,
        key=key,
        etag=stored.etag,
    )
    await storage.put(file.record_key, json.dumps(file.to_fields()).encode())
    await state.files.create(file)
    manifest = Manifest(
        id=ids.batch_id(_TENANT, name),
        tenant=_TENANT,
        message_id=name,
        fingerprint="print",
        door="http",
        endpoint=_ENDPOINT,
        input_file_id=file_id,
        bucket=storage.bucket,
        key=key,
        etag=stored.etag,
        size=stored.size,
        completion_window="24h",
        created_at=now,
        expires_at=now + 86_400,
    )
    return (await accept(state, storage, manifest)).batch_id


async def _run(state: State, storage: Storage, batch_id: str, slices: int) -> None:
    """Commit the first slices of the batch."""
    record = await state.batches.get(batch_id)
    total = record.number("slices_total")
    await state.lanes.feed(_LANE, [f"{batch_id}:{index}" for index in range(total)])
    await state.lanes.open_job(_LANE, "", "job")
    claims = await state.slices.claim(_LANE, "job", lease_seconds=600, slices=100, rows=100_000)
    for claim in claims[:slices]:
        rows = claim.slice.row_numbers
        output = b"".join(b'{"id":"%s"}\n' % ids.result_id(batch_id, n).encode() for n in rows)
        usage = SliceUsage(len(rows), 0, 9, 0, 9, 0)
        key = f"batches/{batch_id}/parts/{claim.index:06d}-{claim.epoch}.jsonl"
        told = label(len(output), len(rows), usage)
        stored = await storage.put_once(key, output, label=told)
        assert stored is not None
        part = Part(key, stored.etag, len(output), 0, len(rows), usage)
        await state.slices.commit(claim, part)


async def _copies(
    storage: Storage, batch_id: str, names: list[str]
) -> AsyncIterator[Awaitable[object]]:
    """What puts copies of a batch's objects under the ids of others."""
    file_id = None
    bodies = {key: await storage.get(key) for key in await storage.keys(f"batches/{batch_id}/")}
    labels = {key: await storage.label(key) for key in bodies if "/parts/" in key}
    manifest = json.loads(bodies[f"batches/{batch_id}/manifest.json"])
    file_id, message_id = manifest["input_file_id"], manifest["message_id"]
    for key in (manifest["key"], f"{manifest['key']}.json"):
        bodies[key] = await storage.get(key)
    for name in names:
        new = {
            batch_id: ids.batch_id(_TENANT, name),
            file_id: f"file-{name:_<22}",
            f'"{message_id}"': f'"{name}"',
            # Those of its output and error file.
            **{
                ids.output_file_id(batch_id, kind): ids.output_file_id(
                    ids.batch_id(_TENANT, name), kind
                )
                for kind in ("output", "error")
            },
        }

        def renamed(text: str, new: dict[str, str] = new) -> str:
            for old, other in new.items():
                text = text.replace(old, other)
            return text

        for key, body in bodies.items():
            yield storage.put_once(
                renamed(key), renamed(body.decode()).encode(), label=labels.get(key, "")
            )


async def _all(work: AsyncIterator[Awaitable[object]]) -> None:
    waiting: set[asyncio.Future[object]] = set()
    async for one in work:
        waiting.add(asyncio.ensure_future(one))
        if len(waiting) >= _AT_ONCE:
            _, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    await asyncio.gather(*waiting)


async def _populate(redis_url: str, where: tuple[str, ...], ended: int, running: int) -> None:
    state, storage = State(redis_url), Storage(*where)
    await storage.prepare()
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(_CATALOG)
        file.flush()
        planner = Planner(
            state,
            storage,
            load_catalog(Path(file.name)),
            slice_limits=SliceLimits(rows=_ROWS_A_SLICE),
            max_rows=50_000,
        )
    first = await _submit(state, storage, "ended-0", _FEW)
    await planner.plan(first)
    await _run(state, storage, first, 1)
    await Finaliser(state, storage, output_seconds=86_400).finish(first)
    second = await _submit(state, storage, "running-0", _MANY)
    await planner.plan(second)
    await _run(state, storage, second, _MANY // _ROWS_A_SLICE // 2)
    for batch_id, kind, count in ((first, "ended", ended), (second, "running", running)):
        await _all(_copies(storage, batch_id, [f"{kind}-{n}" for n in range(1, count)]))
    await state.close()
    storage.close()


async def _empty(redis_url: str) -> None:
    client: RedisClient[bytes] = RedisClient.from_url(redis_url)
    await client.flushall()
    await client.aclose()


async def _measure(redis_url: str, *where: str) -> None:
    """Rebuild, and print seconds, those of CPU time, growth in MiB, and what was made."""
    state, storage = State(redis_url), Storage(*where)
    await state.ping()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began, steps = time.perf_counter(), dict[str, float]()

    def told(step: str, share: float) -> None:
        if share >= 1.0:
            steps[step] = round(time.perf_counter() - began, 1)

    rebuild = Rebuild(state, storage, told=told)
    await rebuild.run()
    seconds = time.perf_counter() - began
    growth = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    running = len(await state.batches.in_status(Status.IN_PROGRESS, limit=100_000))
    cpu = time.process_time()
    print(json.dumps([seconds, cpu, growth, running, dict(rebuild.counts), steps]))
    await state.close()
    storage.close()


def main() -> int:
    """Exit code 1 when it takes longer than the goal, or not everything is there."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--batches", type=int, default=10_000)
    parser.add_argument("--running", type=int, default=100)
    parser.add_argument("--goal-seconds", type=float, default=60.0)
    parser.add_argument("--measure", nargs="*")
    options = parser.parse_args()
    if options.measure:
        asyncio.run(_measure(*options.measure))
        return 0
    with tempfile.TemporaryDirectory(prefix="rebuild-") as folder:
        keys = secrets.token_hex(10), secrets.token_hex(20)
        redis, s3 = Redis(Path(folder), secrets.token_hex(8)), CephS3(Path(folder), *keys)
        try:
            redis.start()
            s3.start()
            where = (s3.endpoint, *keys, "rebuild")
            ended = options.batches - options.running
            asyncio.run(_populate(redis.url, where, ended, options.running))
            asyncio.run(_empty(redis.url))
            done = subprocess.run(
                [sys.executable, "-m", "benchmarks.rebuild", "--measure", redis.url, *where],
                stdout=subprocess.PIPE,
                check=True,
            )
        finally:
            redis.kill()
            s3.kill()
    seconds, cpu, growth, running, counts, steps = json.loads(done.stdout.splitlines()[-1])
    print(
        f"{counts['batches']:,} batches, of which {running} run on with {counts['parts']:,} of "
        f"{counts['slices']:,} slices done, and {counts['files_made']:,} files: {seconds:.1f} s "
        f"(goal: at most {options.goal_seconds:g}), {cpu:.1f} s of CPU time of its own, memory "
        f"grew by {growth:.0f} MiB; "
        f"steps ended after {steps}"
    )
    is_whole = counts["batches"] == options.batches and running == options.running
    return 0 if is_whole and seconds <= options.goal_seconds else 1


if __name__ == "__main__":
    sys.exit(main())
