"""Real Redis and S3 with the dispatcher's parts on them, and one Ray for all who need it."""

import asyncio
import importlib.util
import json
import os
import random
import secrets
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aio_pika
import httpx
import pytest
from redis.asyncio import Redis

from cli.fleet.ray import RayNode
from dispatcher.cluster import Cluster
from dispatcher.finaliser import Finaliser
from dispatcher.lanes import LaneKeeper
from dispatcher.leader import Leader
from dispatcher.planning import Planner
from dispatcher.predictions import Predictions
from dispatcher.reaper import Reaper
from dispatcher.remaker import Remaker
from dispatcher.rounds import Rounds
from dispatcher.row_span import SpanLimits
from dispatcher.sender import Sender
from dispatcher.webhooks import Deliverer
from dispatcher.windows import Windows
from shared.bus.connection import Bus
from shared.bus.relay import Relay
from shared.catalog import Catalog
from shared.catalog_file import load_catalog
from shared.input.request_lines import split
from shared.ledger.batch_records import read_from
from shared.ledger.parts import part_key
from shared.outbound import Guard
from shared.slices import Claim, Slice, new_part, part_label
from shared.slicing import SliceLimits
from shared.state import State
from shared.storage import Storage
from shared.tasks import end
from tests.batches import JOB, submitted
from tests.eventually import wait_until
from tests.integration.dispatcher.doors import SERVICE, Door, an_intake
from tests.servers import absent
from worker.outcomes import Outcome, SliceResult
from worker.rows import assemble
from worker.slice_io import fetch, settle
from worker.slice_run import SliceRun

CHAT = "/v1/chat/completions"
OUTPUT_SECONDS = 3600
ROWS_A_SLICE = 3
CATALOG = """\
pools:
  gpu: {resources: {CPU: 1}, price_per_hour: 3.6}
models:
  m: {pools: [gpu]}
  few: {pools: [gpu], max_enqueued_tokens: 1000, lora: {adapter: ./adapter}}
  other: {pools: [gpu], tenant_lora: {}}
  embedder: {pools: [gpu], engine: {runner: pooling}}
"""

#: The same with engines that have a queue of 4 rows, so that small inputs are put in groups.
SMALL_ENGINES = CATALOG.replace("{pools: [gpu]}", "{pools: [gpu], engine: {max_num_seqs: 2}}")

#: GPU time of each answer in microseconds.
MICROS = 1_500
#: HTTP status and body of a row, and its GPU time; None for one that did not run.
Result = tuple[int, bytes] | tuple[int, bytes, int] | None


def good(text: str = "x") -> Result:
    """An engine's answer of 3 tokens in and 2 out."""
    body = {"choices": [text], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}
    return 200, json.dumps(body).encode(), MICROS


def bad() -> Result:
    """An engine's refusal of one row."""
    return 400, b'{"error":{"message":"no"}}'


def line(custom_id: str, *, ascii_only: bool = True, **body: Any) -> bytes:
    """A request, without its line feed."""
    request = {
        "custom_id": custom_id,
        "method": "POST",
        "url": CHAT,
        "body": {"model": "m", "messages": [], **body},
    }
    return json.dumps(request, ensure_ascii=ascii_only).encode()


def lines(rows: int, **body: Any) -> bytes:
    """An input file; the custom ids are `row-0`, `row-1`, …"""
    return b"".join(line(f"row-{row}", **body) + b"\n" for row in range(rows))


def with_prefix(row: int, prefix: int, *, model: str = "m", **body: Any) -> bytes:
    """A request that begins like all others with this prefix, without its line feed."""
    content = f"{prefix} " * 1000 + f"row {row}"
    messages = [{"role": "user", "content": content}]
    return line(f"row-{row}", model=model, messages=messages, **body)


def shuffled(prefixes: int, rows: int) -> bytes:
    """An input file with so many rows of each prefix."""
    order = list(range(prefixes)) * rows
    random.Random(5).shuffle(order)
    return b"".join(with_prefix(row, prefix) + b"\n" for row, prefix in enumerate(order))


@dataclass(frozen=True)
class BatchYard:
    """Takes a batch through its life without a fleet."""

    state: State
    storage: Storage
    planner: Planner
    finaliser: Finaliser

    def __post_init__(self) -> None:
        read_from(self.state, self.storage)

    async def submit(self, body: bytes, **changes: Any) -> str:
        """A batch that waits for its plan, over an input of these bytes."""
        return await submitted(self.state, self.storage, body, **changes)

    async def plan(self, body: bytes, **changes: Any) -> str:
        """A batch that runs."""
        batch_id = await self.submit(body, **changes)
        await self.planner.plan(batch_id)
        return batch_id

    async def slices(self, batch_id: str) -> list[Slice]:
        """The batch's slices in order."""
        plan = (await self.state.batches.get(batch_id)).fields["plan"]
        return await self.state.slices.planned(batch_id, plan)

    async def claim(self, batch_id: str) -> list[Claim]:
        """The claims on all of its slices, in order."""
        count = len(await self.slices(batch_id))
        claims: list[Claim] = []
        for lane in (await self.state.batches.get(batch_id)).lanes:
            for first in range(0, count, 100):
                members = [f"{batch_id}:{index}" for index in range(first, min(count, first + 100))]
                await self.state.lanes.feed(lane, members)
            await self.state.lanes.open_job(lane, "", JOB)
            # Slices of other batches may be before its own.
            while taken := await self.state.claims.take(
                lane, JOB, lease_seconds=60, slices=count, rows=100_000, begun=True
            ):
                claims += taken
            claims += await self.state.claims.take_suspects(
                lane, JOB, lease_seconds=60, rows=100_000
            )
        for claim in claims:
            if claim.batch_id != batch_id:
                await self.state.claims.release(claim)
        own = (claim for claim in claims if claim.batch_id == batch_id)
        return sorted(own, key=lambda claim: claim.index)

    async def commit(self, claim: Claim, results: Sequence[Result]) -> None:
        """Write and record a part as a lane job does; one result a row."""
        fetched = await fetch(self.storage, claim)
        assert isinstance(fetched.lines, bytes)
        pool = claim.lane.rpartition("@")[2]
        rows = split(fetched.lines)
        body = assemble(claim.batch_id, claim.slice, rows, results, pool=pool)
        key = part_key(claim.batch_id, claim.index, claim.epoch)
        part = new_part(key, *body)
        label = part_label(part)
        stored = await self.storage.put_once(key, body.output + body.error, label=label)
        assert stored is not None
        assert await self.state.claims.commit(claim, part._replace(etag=stored.etag)) == "ok"

    async def run(self, batch_id: str, result: Callable[[int], Result]) -> None:
        """Claim all and commit all; `result` says what each row gives."""
        for claim in await self.claim(batch_id):
            await self.commit(claim, [result(row) for row in claim.slice.row_numbers])

    async def events(self, batch_id: str) -> list[str]:
        """The types of the batch's events, in order."""
        entries = await self.state.outbox.read("events", limit=10_000, wait_seconds=0.001)
        return [entry.fields["type"] for entry in entries if entry.snapshot()["id"] == batch_id]

    async def content(self, file_id: str | None) -> bytes:
        """What a file of the tenant holds."""
        assert file_id is not None
        return await self.storage.get((await self.state.files.get("acme", file_id)).key)

    async def parsed(self, file_id: str | None) -> list[dict[str, Any]]:
        """The lines of a result file."""
        return [json.loads(text) for text in (await self.content(file_id)).splitlines()]


async def run_slice(yard: BatchYard, claim: Claim, result: Callable[[int], Result]) -> Outcome:
    """Run a slice as a lane job does; `result` says what each row gives that has to run."""
    given = await fetch(yard.storage, claim)
    if isinstance(given.lines, Outcome):
        return given.lines
    run = SliceRun(claim, given.lines, given.kept)
    for position in [one for chunk in run.chunks(100) for one in chunk]:
        answer = result(claim.slice.row_numbers[position])
        assert answer is not None
        run.answer(position, answer)
    assert run.is_done
    await settle(yard.state, yard.storage, claim, SliceResult(Outcome.DONE, run.body()))
    return Outcome.DONE


def a_planner(
    state: State,
    storage: Storage,
    catalog: Catalog,
    *,
    rows: int = ROWS_A_SLICE,
    max_rows: int = 50_000,
    **limits: Any,
) -> Planner:
    """A planner whose slices hold `rows` rows."""
    return Planner(
        state,
        storage,
        catalog,
        slice_limits=SliceLimits(rows=rows),
        max_rows=max_rows,
        **{"spans": SpanLimits(), **limits},
    )


def a_leader(state: State, storage: Storage, planner: Planner, keeper: LaneKeeper) -> Leader:
    """One that delivers no webhooks."""
    finaliser = Finaliser(state, storage, output_seconds=OUTPUT_SECONDS)
    return Leader(
        rounds=Rounds(
            state,
            planner=planner,
            finaliser=finaliser,
            remaker=Remaker(state, storage),
            lanes=keeper,
        ),
        windows=Windows(state),
        reaper=Reaper(state, storage),
        deliverer=Deliverer(
            state,
            Sender(Guard(()), timeout_seconds=1),
            timeout_seconds=1,
            attempts=1,
            attempts_per_endpoint=1,
        ),
        predictions=Predictions(state),
    )


@pytest.fixture(scope="session")
def catalog_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("catalog") / "catalog.yaml"
    path.write_text(CATALOG)
    return path


@pytest.fixture
def catalog(catalog_file: Path) -> Catalog:
    return load_catalog(catalog_file)


@pytest.fixture
def yard(state: State, storage: Storage, catalog: Catalog) -> BatchYard:
    return BatchYard(
        state,
        storage,
        a_planner(state, storage, catalog),
        Finaliser(state, storage, output_seconds=OUTPUT_SECONDS),
    )


@pytest.fixture
async def plans(redis: "Redis[str]", namespace: str) -> "PlanKeys":
    return PlanKeys(redis, namespace)


class PlanKeys:
    """The plans in Redis, behind State's back."""

    def __init__(self, redis: "Redis[str]", namespace: str) -> None:
        self._redis = redis
        self._namespace = namespace

    async def lifetimes(self, batch_id: str) -> dict[str, int]:
        """Seconds that each plan of the batch still has, by its name; -1 for one that stays."""
        prefix = f"{self._namespace}plan:{batch_id}:"
        keys = [key async for key in self._redis.scan_iter(match=f"{prefix}*", count=1000)]
        return {key.removeprefix(prefix): await self._redis.ttl(key) for key in keys}


RAY_TOKEN = secrets.token_hex(32)


@pytest.fixture
async def door(bus: Bus, amqp_url: str) -> AsyncIterator[Door]:
    tenant = urlsplit(amqp_url).username or ""
    async with await aio_pika.connect(amqp_url) as connection:
        channel = await connection.channel()
        replies = await channel.declare_queue(
            f"reply.{tenant}.{secrets.token_hex(4)}", exclusive=True
        )
        bare = await connection.channel(publisher_confirms=False)
        yield Door(channel, bare, replies, tenant)


@pytest.fixture
async def replying(state: State, bus: Bus) -> AsyncIterator[None]:
    """The relay that sends replies."""
    relay = Relay(state, bus, "replies", holder="test", service_user=SERVICE)
    task = asyncio.create_task(relay.run())
    yield
    await end(task)


@pytest.fixture
async def acme(
    door: Door, bus: Bus, state: State, storage: Storage, catalog: Catalog, replying: None
) -> Door:
    """The tenant, whom the intake serves."""
    await bus.consume(door.serve(an_intake(state, storage, bus, catalog)))
    return door


@pytest.fixture(scope="session")
def ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayNode]:
    """A Ray head that answers to RAY_TOKEN only."""
    if importlib.util.find_spec("ray") is None:
        absent("Ray", "PATH")
    environment = {name: text for name, text in os.environ.items() if "BATCHYARD" not in name}
    node = RayNode(tmp_path_factory.mktemp("ray"), RAY_TOKEN, environment)
    node.launch()
    try:
        node.wait()
        # The head answers some seconds before it takes a job.
        wait_until(lambda: _takes_a_job(node))
        yield node
    finally:
        node.stop()


@pytest.fixture
async def cluster(ray: RayNode) -> AsyncIterator[Cluster]:
    cluster = Cluster(ray.address, RAY_TOKEN)
    yield cluster
    await cluster.close()


def _takes_a_job(node: RayNode) -> bool:
    return httpx.post(
        f"{node.address}/api/jobs/",
        headers={"Authorization": f"Bearer {RAY_TOKEN}"},
        json={"entrypoint": "true"},
        timeout=60,
    ).is_success
