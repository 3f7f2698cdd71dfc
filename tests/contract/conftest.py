"""A live gateway for any client: real servers, real processes, and a simulated engine.

All of it stops with the last test of this folder, so that it takes no other test's messages.
"""

import asyncio
import json
import os
import secrets
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import aio_pika
import httpx
import pytest
from openai import OpenAI
from redis import Redis

from cli.servers import free_port
from shared.bus import topology
from shared.bus.connection import Bus
from shared.state import State
from tests.contract.engine import ScriptedEngine
from tests.contract.processes import Process
from tests.contract.receiver import Receiver
from tests.eventually import wait_until
from tests.servers import S3, storage_of

T = TypeVar("T")

CHAT = "/v1/chat/completions"
MODEL = "tiny"
OTHER_MODEL = "org/other-1.5"
EMBEDDER = "minilm"
#: Its engine never starts.
BROKEN_MODEL = "broken"
ROWS_A_SLICE = 2
CATALOG = f"""\
pools:
  cpu: {{resources: {{CPU: 1}}}}
models:
  {MODEL}: {{pools: [cpu]}}
  {OTHER_MODEL}: {{pools: [cpu]}}
  {BROKEN_MODEL}: {{pools: [cpu]}}
  {EMBEDDER}: {{pools: [cpu], engine: {{runner: pooling}}}}
"""
FINAL = {"completed", "failed", "expired", "cancelled"}


@dataclass(frozen=True)
class ServiceYard:
    """The running service, and the ways to disturb it."""

    url: str
    environment: dict[str, str] = field(repr=False)
    gateway: Process
    dispatcher: Process
    engine: ScriptedEngine
    redis: "Redis[str]"

    def new_key(self, tenant: str) -> str:
        """An API key of the tenant."""
        return self.on_state(lambda state: state.keys.create(tenant))

    def on_state(self, call: Callable[[State], Awaitable[T]]) -> T:
        """What the call gives, behind the gateway's back."""

        async def run() -> T:
            state = State(self.environment["BATCHYARD_REDIS_URL"])
            try:
                return await call(state)
            finally:
                await state.close()

        return asyncio.run(run())

    def close_window(self, batch_id: str) -> None:
        """Let the batch's completion window be over; the reaper finds out by itself."""
        self.redis.zadd("{batchyard}:deadlines", {batch_id: 1})


@dataclass(frozen=True)
class Caller:
    """A tenant, with the SDK and with bare HTTP."""

    yard: ServiceYard
    tenant: str
    key: str = field(repr=False)
    openai: OpenAI
    http: httpx.Client
    made: list[str] = field(default_factory=list)

    def upload(self, rows: bytes, **changes: Any) -> str:
        """The id of an input file of these bytes."""
        return self.openai.files.create(
            **{"file": ("in.jsonl", rows), "purpose": "batch", **changes}
        ).id

    def create(self, rows: bytes, **changes: Any) -> dict[str, Any]:
        """A new batch over these rows."""
        answer = self.http.post("/v1/batches", json={**batch_params(self.upload(rows)), **changes})
        assert answer.status_code == 200, answer.text
        self.made.append(answer.json()["id"])
        batch: dict[str, Any] = answer.json()
        return batch

    def batch(self, batch_id: str) -> dict[str, Any]:
        """The batch as it is now."""
        answer = self.http.get(f"/v1/batches/{batch_id}")
        assert answer.status_code == 200, answer.text
        batch: dict[str, Any] = answer.json()
        return batch

    def until(self, batch_id: str, *statuses: str, timeout: float = 20) -> dict[str, Any]:
        """The batch once it has one of the statuses."""
        last: dict[str, Any] = {}

        def is_there() -> bool:
            last.update(self.batch(batch_id))
            return last["status"] in statuses

        wait_until(is_there, timeout)
        return last

    def run(self, rows: bytes, **changes: Any) -> dict[str, Any]:
        """A batch over these rows that has ended."""
        return self.until(self.create(rows, **changes)["id"], *FINAL)

    def lines(self, file_id: str | None) -> list[dict[str, Any]]:
        """The lines of a result file; none where there is no file."""
        if file_id is None:
            return []
        return [json.loads(line) for line in self.openai.files.content(file_id).iter_lines()]


def batch_params(file_id: str, **changes: Any) -> dict[str, Any]:
    """The body of a creation."""
    return {
        "input_file_id": file_id,
        "endpoint": CHAT,
        "completion_window": "24h",
        **changes,
    }


def row(custom_id: str, says: str = "hello", *, model: str = MODEL, **changes: Any) -> bytes:
    """One request line, with its line feed."""
    request = {
        "custom_id": custom_id,
        "method": "POST",
        "url": CHAT,
        "body": {"model": model, "messages": [{"role": "user", "content": says}]},
        **changes,
    }
    return json.dumps(request).encode() + b"\n"


def rows(*says: str) -> bytes:
    """Request lines with the custom ids `row-0`, `row-1`, …"""
    return b"".join(row(f"row-{number}", one) for number, one in enumerate(says))


def custom_ids(count: int) -> list[str]:
    """Those of `rows`."""
    return [f"row-{number}" for number in range(count)]


@pytest.fixture(scope="package")
def yard(
    tmp_path_factory: pytest.TempPathFactory, redis_url: str, amqp_url: str, s3: S3
) -> Iterator[ServiceYard]:
    """Nobody else's Redis database and bucket; the broker is everybody's."""
    asyncio.run(_purge(amqp_url))
    redis = f"{redis_url.rpartition('/')[0]}/11"
    with running_yard(tmp_path_factory.mktemp("contract"), redis, amqp_url, s3) as yard:
        yield yard


@contextmanager
def running_yard(
    folder: Path, redis_url: str, amqp_url: str, s3: S3, **changes: str
) -> Iterator[ServiceYard]:
    """A yard on this Redis database, which is emptied; `changes` are settings in lower case."""
    with Redis.from_url(redis_url) as redis:
        redis.flushdb()
        try:
            with yard_on(folder, redis_url, amqp_url, s3, **changes) as yard:
                yield yard
        finally:
            redis.flushdb()


@contextmanager
def yard_on(
    folder: Path, redis_url: str, amqp_url: str, s3: S3, **changes: str
) -> Iterator[ServiceYard]:
    """A yard that goes on with what the database holds."""
    (folder / "catalog.yaml").write_text(CATALOG)
    redis: Redis[str] = Redis.from_url(redis_url, decode_responses=True)
    port = free_port()
    environment = {
        **{name: text for name, text in os.environ.items() if "BATCHYARD" not in name},
        "BATCHYARD_AMQP_URL": amqp_url,
        "BATCHYARD_REDIS_URL": redis_url,
        "BATCHYARD_S3_ENDPOINT": s3.endpoint,
        "BATCHYARD_S3_ACCESS_KEY": s3.access_key,
        "BATCHYARD_S3_SECRET_KEY": s3.secret_key,
        "BATCHYARD_S3_BUCKET": f"contract-{secrets.token_hex(4)}",
        "BATCHYARD_SERVICE_USER": urlsplit(amqp_url).username or "",
        "BATCHYARD_CATALOG": str(folder / "catalog.yaml"),
        "BATCHYARD_PORT": str(port),
        # Nothing listens there: the dispatcher plans, orders and finishes without Ray.
        "BATCHYARD_RAY_ADDRESS": f"http://127.0.0.1:{free_port()}",
        "BATCHYARD_RAY_TOKEN": "token",
        "BATCHYARD_ROWS_PER_SLICE": str(ROWS_A_SLICE),
        "BATCHYARD_MAX_ROWS_PER_BATCH": "1000",
        "BATCHYARD_LEASE_SECONDS": "2",
        # These tests are one tenant in a hurry.
        "BATCHYARD_REQUESTS_PER_MINUTE": "1000000",
        "BATCHYARD_FILE_REQUESTS_PER_MINUTE": "1000000",
        "BATCHYARD_BATCHES_PER_HOUR": "1000000",
        # Receivers of webhooks are on this machine.
        "BATCHYARD_WEBHOOK_NETWORKS": '["127.0.0.0/8"]',
        "BATCHYARD_WEBHOOK_HTTP": "true",
        **{f"BATCHYARD_{name.upper()}": text for name, text in changes.items()},
    }
    engine = ScriptedEngine(_state_of(environment), lambda: storage_of(environment))
    yard = ServiceYard(
        f"http://127.0.0.1:{port}",
        environment,
        Process("gateway", environment, folder),
        Process("dispatcher", environment, folder),
        engine,
        redis,
    )
    try:
        yard.gateway.start()
        yard.dispatcher.start()
        yard.gateway.wait()
        yard.dispatcher.wait()
        engine.start()
        yield yard
    finally:
        engine.stop()
        yard.dispatcher.stop()
        yard.gateway.stop()
        redis.close()


@pytest.fixture
def acme(yard: ServiceYard) -> Iterator[Caller]:
    """A new tenant."""
    yield from calling(yard, f"t{secrets.token_hex(4)}")


@pytest.fixture
def globex(yard: ServiceYard) -> Iterator[Caller]:
    """Another one."""
    yield from calling(yard, f"t{secrets.token_hex(4)}")


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.stop()


def calling(yard: ServiceYard, tenant: str) -> Iterator[Caller]:
    """The tenant as an HTTP client; what still runs of what it made is cancelled afterwards."""
    key = yard.new_key(tenant)
    with (
        OpenAI(api_key=key, base_url=f"{yard.url}/v1", max_retries=0) as openai,
        httpx.Client(
            base_url=yard.url, headers={"authorization": f"Bearer {key}"}, timeout=30
        ) as http,
    ):
        caller = Caller(yard, tenant, key, openai, http)
        yield caller
        for batch_id in caller.made:
            http.post(f"/v1/batches/{batch_id}/cancel")


def _state_of(environment: dict[str, str]) -> Callable[[], State]:
    return lambda: State(environment["BATCHYARD_REDIS_URL"])


async def _purge(amqp_url: str) -> None:
    """Forget what tests before have left in the queues."""
    bus = Bus(amqp_url)
    await bus.connect()
    await bus.close()
    async with await aio_pika.connect(amqp_url) as connection:
        channel = await connection.channel()
        for name in topology.REQUIRED_QUEUES:
            await (await channel.get_queue(name)).purge()
