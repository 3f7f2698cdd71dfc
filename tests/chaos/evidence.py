"""Everything that a run leaves behind, in files: Redis, S3, RabbitMQ and the journals."""

import asyncio
import json
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aio_pika
from minio import Minio
from redis.asyncio import Redis
from redis.asyncio.client import Pipeline

from shared.bus import topology
from shared.ledger.packs import PACKS
from shared.state.state import NAMESPACE
from shared.storage import Storage
from tests.chaos.engine import ASK_LIVE, answers_beside
from tests.chaos.fleet import ChaosFleet, reply_queues, subscriptions
from tests.chaos.journal import read
from tests.chaos.live_clients import JOURNAL as LIVE_JOURNAL

#: Objects whose bytes the checker reads; for the others the name is enough.
_READ = (".json", "output.jsonl", "error.jsonl")
_AT_ONCE = 16
_KEYS_AT_ONCE = 500
#: How long an answer of Redis may take, on a machine shared with everything else.
_REDIS_SECONDS = 120.0


@dataclass
class Evidence:
    """All that the checker looks at."""

    #: What publishers intended and were promised.
    published: list[dict[str, Any]] = field(default_factory=list)
    #: What watchers saw over HTTP.
    watched: list[dict[str, Any]] = field(default_factory=list)
    #: What each subscriber received, by its queue.
    received: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    webhooks: list[dict[str, Any]] = field(default_factory=list)
    #: Answers to messages, of all tenants.
    replies: list[dict[str, Any]] = field(default_factory=list)
    #: What the engine ran.
    runs: list[dict[str, Any]] = field(default_factory=list)
    #: What callers of live calls asked and got, and what the engine still has of it at the end.
    live: list[dict[str, Any]] = field(default_factory=list)
    engine: dict[str, int] = field(default_factory=dict)
    #: What it has answered.
    answers: list[dict[str, Any]] = field(default_factory=list)
    #: Redis without its namespace: hashes as objects, sorted sets as [member, score] pairs.
    redis: dict[str, Any] = field(default_factory=dict)
    #: Size of each object in S3.
    objects: dict[str, int] = field(default_factory=dict)
    #: Bytes of those that are read.
    bodies: dict[str, bytes] = field(default_factory=dict)
    #: Multipart uploads that were begun and neither completed nor aborted.
    multipart: list[str] = field(default_factory=list)
    #: Dead letters that were read and dropped.
    letters: list[dict[str, Any]] = field(default_factory=list)
    #: The faults, and the named points at which processes have died.
    faults: list[dict[str, Any]] = field(default_factory=list)
    crashes: list[str] = field(default_factory=list)
    #: Rows on the list of dead rows before Redis was put back to an older state.
    dead_rows_before: frozenset[str] = frozenset()
    #: Messages in each queue of RabbitMQ.
    queues: dict[str, int] = field(default_factory=dict)
    #: When it was collected, in Unix seconds.
    at: float = 0.0


async def collect(fleet: ChaosFleet) -> None:
    """Write down what the three servers hold."""
    folder = fleet.run_dir / "evidence"
    folder.mkdir(exist_ok=True)
    redis, at = await _redis(fleet.redis.url)
    (folder / "redis.json").write_text(json.dumps({"at": at, "keys": redis}))
    (folder / "queues.json").write_text(json.dumps(await queue_lengths(fleet)))
    (folder / "engine.json").write_text(json.dumps(await _inside(fleet)))
    storage = Storage(*fleet.s3)
    try:
        # A part that became the output file is among the parts.
        named = _named_parts(redis)
        listing = await asyncio.to_thread(_listing, fleet.s3)
        wanted = [
            name
            for name in listing
            if name.endswith(_READ) or name in named or name.startswith(PACKS)
        ]
        for names in _chunks(wanted, _AT_ONCE):
            await asyncio.gather(*(_fetch(storage, name, folder / "s3") for name in names))
    finally:
        storage.close()
    multipart = await asyncio.to_thread(_multipart, fleet.s3)
    (folder / "s3.json").write_text(json.dumps({"objects": listing, "multipart": multipart}))


def load(run_dir: Path) -> Evidence:
    """The evidence of a run, from its files alone."""
    folder, journal = run_dir / "evidence", run_dir / "journal"
    redis = json.loads((folder / "redis.json").read_text())
    s3 = json.loads((folder / "s3.json").read_text())
    stored, crashes = folder / "s3", journal / "crashes"
    faults = read(journal / "faults.jsonl")
    return Evidence(
        published=read(journal / "published.jsonl"),
        watched=read(journal / "watched.jsonl"),
        received={queue: read(journal / f"received-{queue}.jsonl") for _, queue in subscriptions()},
        webhooks=read(journal / "webhooks.jsonl"),
        replies=read(journal / "replies.jsonl"),
        letters=read(journal / "letters.jsonl"),
        faults=[one for one in faults if one["what"] == "fault"],
        dead_rows_before=frozenset(
            row for one in faults if one["what"] == "put_back" for row in one["dead_rows"]
        ),
        crashes=crashes.read_text().split() if crashes.exists() else [],
        runs=read(journal / "engine.jsonl"),
        live=read(journal / LIVE_JOURNAL),
        engine=json.loads((folder / "engine.json").read_text()),
        answers=read(answers_beside(journal / "engine.jsonl")),
        redis=redis["keys"],
        objects=s3["objects"],
        bodies={
            name: (stored / name).read_bytes()
            for name in s3["objects"]
            if (stored / name).is_file()
        },
        multipart=s3["multipart"],
        queues=json.loads((folder / "queues.json").read_text()),
        at=redis["at"],
    )


async def queue_lengths(fleet: ChaosFleet) -> dict[str, int]:
    """Messages that wait in each queue."""
    clients = [*subscriptions(), *reply_queues()]
    names = [*topology.QUEUE_ARGUMENTS, *(queue for _, queue in clients)]
    async with await aio_pika.connect(fleet.service_amqp_url, timeout=60) as connection:
        channel = await connection.channel()
        lengths = {}
        for name in names:
            queue = await channel.declare_queue(name, passive=True)
            lengths[name] = queue.declaration_result.message_count or 0
    return lengths


async def _inside(fleet: ChaosFleet) -> dict[str, int]:
    """What the simulated engine still has of live calls: seats, and calls."""
    if not fleet.has_live_calls:
        return {}
    reader, writer = await asyncio.open_connection(fleet.host, fleet.ports.get("engine"))
    try:
        await reader.readline()
        writer.write(json.dumps(ASK_LIVE).encode() + b"\n")
        told = json.loads(await reader.readline())
    finally:
        writer.close()
    return {name: told[name] for name in ("seats", "calls")}


async def _redis(url: str) -> tuple[dict[str, Any], float]:
    redis: Redis[str] = Redis.from_url(
        url, decode_responses=True, socket_timeout=_REDIS_SECONDS, single_connection_client=True
    )
    found: dict[str, Any] = {}
    keys = [key async for key in redis.scan_iter(match=f"{NAMESPACE}*", count=1000)]
    for some in _chunks(keys, _KEYS_AT_ONCE):
        async with redis.pipeline(transaction=False) as pipe:
            for key in some:
                pipe.type(key)
            kinds = await pipe.execute()
            for key, kind in zip(some, kinds, strict=True):
                _content(pipe, key, kind)
            contents = await pipe.execute()
        for key, content in zip(some, contents, strict=True):
            found[key.removeprefix(NAMESPACE)] = (
                sorted(content) if isinstance(content, set) else content
            )
    seconds, _ = await redis.time()
    await redis.aclose()
    return found, float(seconds)


def _content(pipe: "Pipeline[str]", key: str, kind: str) -> None:
    match kind:
        case "hash":
            pipe.hgetall(key)
        case "zset":
            pipe.zrange(key, 0, -1, withscores=True)
        case "set":
            pipe.smembers(key)
        case "stream":
            pipe.xlen(key)
        case "list":
            pipe.lrange(key, 0, -1)
        case _:
            pipe.get(key)


def _named_parts(redis: dict[str, Any]) -> set[str]:
    found = {
        json.loads(record[name])["key"]
        for key, record in redis.items()
        if key.startswith("batch:")
        for name in ("output_object", "error_object")
        if name in record
    }
    # The files of pipelines are no parts, and have no names of their own.
    for key, record in redis.items():
        if key.startswith("pipeline:"):
            files = (record.get(f"{kind}_file_id") for kind in ("output", "error"))
            found |= {f"files/{record['tenant']}/{file_id}" for file_id in files if file_id}
    return found


def _listing(s3: Sequence[str]) -> dict[str, int]:
    client = _client(s3)
    return {
        found.object_name or "": found.size or 0
        for found in client.list_objects(s3[3], recursive=True)
    }


def _multipart(s3: Sequence[str]) -> list[str]:
    # The client has no public way to see them.
    page = _client(s3)._list_multipart_uploads(s3[3])  # noqa: SLF001
    return [upload.object_name for upload in page.uploads]


def _client(s3: Sequence[str]) -> Minio:
    endpoint, access_key, secret_key, _ = s3
    return Minio(
        endpoint.removeprefix("http://"),
        access_key=access_key,
        secret_key=secret_key,
        secure=False,
        region="us-east-1",
    )


async def _fetch(storage: Storage, name: str, folder: Path) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        async with aclosing(storage.stream(name)) as chunks:
            async for chunk in chunks:
                file.write(chunk)


def _chunks(names: list[str], size: int) -> list[list[str]]:
    return [names[first : first + size] for first in range(0, len(names), size)]
