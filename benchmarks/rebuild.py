"""`python -m benchmarks.rebuild`: how long a rebuild of 10,000 batches takes, of which 100 run.

A batch of each kind goes its whole way on a real Redis and a real S3; the others are copies of what
these have left in S3, under ids of their own, with which Redis is filled. Then Redis is emptied or,
with `--stale`, put back to what it was before batches ended and parts were committed; and it is
made again by the command in a process of its own, which says by how much it grew. All batches are
looked at: none is lost, none that has ended is to run again, committed parts are kept, and events
are sent again as they were.
"""

import argparse
import asyncio
import json
import os
import resource
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Mapping
from pathlib import Path
from typing import Any

from redis.asyncio import Redis as RedisClient

from benchmarks.rebuild_proof import Proof, Published, differences, renamed, take, take_events
from cli.rebuild.rebuild import Rebuild
from cli.servers import CephS3, Redis
from dispatcher.finaliser import Finaliser
from dispatcher.planning import Planner
from shared import ids
from shared.catalog_file import load_catalog
from shared.ledger.batch_records import read_from
from shared.ledger.manifests import Manifest
from shared.ledger.parts import part_key
from shared.lifecycle import Status
from shared.slices import SliceUsage, new_part, part_label
from shared.slicing import SliceLimits
from shared.state import FileRecord, State
from shared.storage import Storage
from shared.submission.accept import accept

_TENANT = "acme"
_ENDPOINT = "/v1/chat/completions"
_CATALOG = "pools:\n  gpu: {resources: {CPU: 1}}\nmodels:\n  m: {pools: [gpu]}\n"
_LANE = "m@gpu"
_ROWS_A_SLICE = 10
#: Rows of a batch that has ended, and of one that runs, half of whose slices have their results.
_FEW, _MANY = 10, 400
#: Slices that are committed in between: of those that end, and of the others.
_ALL, _MORE = _MANY // _ROWS_A_SLICE, 5
_AT_ONCE = 24
_SHOWN = 20
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
    claims = await state.claims.take(_LANE, "job", lease_seconds=600, slices=100, rows=100_000)
    for claim in claims[:slices]:
        rows = claim.slice.row_numbers
        output = b"".join(b'{"id":"%s"}\n' % ids.result_id(batch_id, n).encode() for n in rows)
        usage = SliceUsage(len(rows), 0, 9, 0, 9, 0)
        part = new_part(part_key(batch_id, claim.index, claim.epoch), output, b"", usage)
        stored = await storage.put_once(part.key, output, label=part_label(part))
        assert stored is not None
        await state.claims.commit(claim, part._replace(etag=stored.etag))


def _new_names(batch_id: str, file_id: str, message_id: str, name: str) -> dict[str, str]:
    """The replacements of names for the copy called `name`."""
    new_id = ids.batch_id(_TENANT, name)
    return {
        batch_id: new_id,
        file_id: f"file-{name:_<22}",
        f'"{message_id}"': f'"{name}"',
        # Those of its output and error file.
        **{
            ids.output_file_id(batch_id, kind): ids.output_file_id(new_id, kind)
            for kind in ("output", "error")
        },
    }


async def _copies(
    storage: Storage, batch_id: str, names: list[str]
) -> AsyncIterator[Awaitable[object]]:
    """Puts copies of a batch's objects under the ids of others."""
    bodies = {key: await storage.get(key) for key in await storage.keys(f"batches/{batch_id}/")}
    labels = {key: await storage.label(key) for key in bodies if "/parts/" in key}
    manifest = json.loads(bodies[f"batches/{batch_id}/manifest.json"])
    file_id, message_id = manifest["input_file_id"], manifest["message_id"]
    for key in (manifest["key"], f"{manifest['key']}.json"):
        bodies[key] = await storage.get(key)
    for name in names:
        new = _new_names(batch_id, file_id, message_id, name)
        for key, body in bodies.items():
            yield storage.put_once(
                renamed(key, new),
                renamed(body.decode(), new).encode(),
                label=labels.get(key, ""),
            )


async def _all(work: AsyncIterator[Awaitable[object]]) -> None:
    waiting: set[asyncio.Future[object]] = set()
    async for one in work:
        waiting.add(asyncio.ensure_future(one))
        if len(waiting) >= _AT_ONCE:
            _, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    await asyncio.gather(*waiting)


class Fleet:
    """A fleet's stores, and the life of its batches."""

    def __init__(self, redis: Redis, where: tuple[str, ...], options: argparse.Namespace) -> None:
        self.redis = redis
        self.state, self.storage = State(redis.url), Storage(*where)
        read_from(self.state, self.storage)
        self.stale, self._between = options.stale, options.between
        going_on = options.running + (options.between if options.stale else 0)
        self._counts = {"ended": options.batches - going_on, "running": going_on}
        self.events: Published = {}
        #: The first batch of each kind, as it was before anything was lost.
        self._first: dict[str, Mapping[str, str]] = {}

    def names(self, kind: str) -> list[str]:
        return [f"{kind}-{number}" for number in range(self._counts[kind])]

    def batch_ids(self, kind: str) -> list[str]:
        return [ids.batch_id(_TENANT, name) for name in self.names(kind)]

    async def populate(self) -> None:
        """Run one batch of each kind, and copy its objects."""
        await self.storage.prepare()
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            file.write(_CATALOG)
            file.flush()
            planner = Planner(
                self.state,
                self.storage,
                load_catalog(Path(file.name)),
                slice_limits=SliceLimits(rows=_ROWS_A_SLICE),
                max_rows=50_000,
            )
        first = await _submit(self.state, self.storage, "ended-0", _FEW)
        await planner.plan(first)
        await _run(self.state, self.storage, first, 1)
        await self._finish(first)
        second = await _submit(self.state, self.storage, "running-0", _MANY)
        await planner.plan(second)
        await _run(self.state, self.storage, second, _MANY // _ROWS_A_SLICE // 2)
        proof = await take(self.state, [first, second])
        for batch_id, kind in ((first, "ended"), (second, "running")):
            self._first[kind] = proof.records[batch_id]
            await _all(_copies(self.storage, batch_id, self.names(kind)[1:]))

    async def fill(self) -> Proof:
        """Fill Redis with all copies, in the state of the first one of each kind."""
        await Rebuild(self.state, self.storage, progress=lambda *_: None).run()
        self.events |= await take_events(self.state)
        proof = await take(self.state, [*self.batch_ids("ended"), *self.batch_ids("running")])
        for kind, first in self._first.items():
            old_names = first["id"], first["input_file_id"], first["message_id"]
            for name in self.names(kind):
                text = renamed(json.dumps(dict(first)), _new_names(*old_names, name))
                wanted: dict[str, str] = json.loads(text)
                if proof.records.get(wanted["id"]) != wanted:
                    raise SystemExit(f"{name} differs from its original")
        return proof

    async def go_on(self) -> Proof:
        """End some of the running batches, and let the others commit more slices."""
        for number, batch_id in enumerate(self.batch_ids("running")):
            is_last = number < self._between
            await _run(self.state, self.storage, batch_id, _ALL if is_last else _MORE)
            if is_last:
                await self._finish(batch_id)
        self.events |= await take_events(self.state)
        return await take(self.state, [*self.batch_ids("ended"), *self.batch_ids("running")])

    async def _finish(self, batch_id: str) -> None:
        await Finaliser(self.state, self.storage, output_seconds=86_400).finish(batch_id)

    async def close(self) -> None:
        """Close the connections."""
        await self.state.close()
        self.storage.close()


async def _lose(fleet: Fleet, folder: Path) -> tuple[Proof, set[str]]:
    """Make Redis lose state; returns the state before, and the batches whose end was lost."""
    await fleet.populate()
    proof = await fleet.fill()
    unknown = proof.ended
    log, copy = folder / "redis" / "appendonlydir", folder / "before"
    if fleet.stale:
        shutil.copytree(log, copy)
        proof = await fleet.go_on()
        unknown = proof.ended - unknown
        fleet.redis.kill()
        shutil.rmtree(log)
        shutil.copytree(copy, log)
        fleet.redis.start()
    else:
        client: RedisClient[bytes] = RedisClient.from_url(fleet.redis.url)
        await client.flushall()
        await client.aclose()
    return proof, unknown


async def _measure(redis_url: str, *where: str) -> None:
    """Rebuild, and print seconds, CPU seconds, growth in MiB and counts."""
    state, storage = State(redis_url), Storage(*where)
    read_from(state, storage)
    await state.ping()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began, steps = time.perf_counter(), dict[str, float]()

    def note(step: str, share: float) -> None:
        if share >= 1.0:
            steps[step] = round(time.perf_counter() - began, 1)

    rebuild = Rebuild(state, storage, progress=note)
    await rebuild.run()
    seconds = time.perf_counter() - began
    growth = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    running = len(await state.batches.in_status(Status.IN_PROGRESS, limit=100_000))
    cpu = time.process_time()
    print(json.dumps([seconds, cpu, growth, running, dict(rebuild.counts), steps]))
    await state.close()
    storage.close()


async def _prove(
    options: argparse.Namespace, redis: Redis, where: tuple[str, ...], folder: Path
) -> tuple[list[Any], list[str]]:
    """The measurements of the rebuild, and each broken promise."""
    fleet = Fleet(redis, where, options)
    try:
        proof, unknown = await _lose(fleet, folder)
        command = [sys.executable, "-m", "benchmarks.rebuild", "--measure", redis.url, *where]
        done = await asyncio.to_thread(subprocess.run, command, stdout=subprocess.PIPE, check=True)
        broken = await differences(fleet.state, proof, fleet.events, unknown=unknown, lane=_LANE)
    finally:
        await fleet.close()
    return json.loads(done.stdout.splitlines()[-1]), broken


def main() -> int:
    """Exit code 1 if it takes longer than the goal, or if any batch differs."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--batches", type=int, default=10_000)
    parser.add_argument("--running", type=int, default=100)
    parser.add_argument(
        "--stale",
        action="store_true",
        help="restore an older state of Redis instead of emptying it",
    )
    parser.add_argument(
        "--between", type=int, default=50, help="batches that end after the older state"
    )
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
            measured, broken = asyncio.run(_prove(options, redis, where, Path(folder)))
        finally:
            redis.kill()
            s3.kill()
    seconds, cpu, growth, running, counted, steps = measured
    counts = Counter(counted)
    print(
        f"{counts['batches']:,} batches in a Redis {'put back' if options.stale else 'emptied'}, "
        f"{counts['batches_ended']:,} of them ended again by their commits, {running} run on with "
        f"{counts['parts']:,} of {counts['slices']:,} slices done, {counts['files_made']:,} files "
        f"made: {seconds:.1f} s, {seconds / options.goal_seconds:.2f} of the goal of "
        f"{options.goal_seconds:g} s; {cpu:.1f} s of CPU time, memory grew by "
        f"{growth:.0f} MiB; steps ended after {steps}; load average {os.getloadavg()[0]:.1f}"
    )
    print(f"lost, scheduled again, or otherwise different: {len(broken)}")
    for text in broken[:_SHOWN]:
        print(text)
    is_whole = counts["batches"] == options.batches and running == options.running and not broken
    return 0 if is_whole and seconds <= options.goal_seconds else 1


if __name__ == "__main__":
    sys.exit(main())
