"""Gateway, dispatcher and their relays as processes, on a broker that is killed and blocked."""

import asyncio
import json
import os
import secrets
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aio_pika
import httpx
import pytest
from aio_pika.abc import AbstractIncomingMessage
from redis import Redis

from cli import servers
from cli.servers import free_port
from shared import ids
from shared.bus import topology
from shared.bus.broker_errors import CONNECTION_ERRORS
from shared.bus.messages import SUBMIT
from shared.state import State
from shared.state.outbox import Box
from tests.contract.processes import Process
from tests.eventually import eventually
from tests.on_disk import are_bound, are_registered
from tests.servers import S3, SERVICE, TENANT

CHAT = "/v1/chat/completions"
_AT_ONCE = 200
CATALOG = """\
pools:
  cpu: {resources: {CPU: 1}}
models:
  tiny: {pools: [cpu]}
"""


@dataclass(frozen=True)
class BrokerYard:
    """The service on its own broker; nothing runs the batches, so they stay `in_progress`."""

    rabbitmq: servers.RabbitMQ
    environment: dict[str, str] = field(repr=False)
    gateway: Process
    dispatcher: Process
    state: State
    http: httpx.AsyncClient
    file_id: str

    async def create(self, key: str) -> str:
        """The id of the batch that HTTP makes for this idempotency key, in one call."""
        params = {"input_file_id": self.file_id, "endpoint": CHAT, "completion_window": "24h"}
        answer = await self.http.post(
            "/v1/batches", json=params, headers={"idempotency-key": key}, timeout=60
        )
        assert answer.status_code == 200, answer.text
        made: str = answer.json()["id"]
        return made

    async def publish(self, message_id: str, *, reply_to: str | None = None) -> str:
        """Submit by the bus until the broker confirms; returns the id of the batch to be."""
        while True:
            with suppress(*CONNECTION_ERRORS, OSError):
                async with await aio_pika.connect(self.rabbitmq.url(TENANT), timeout=20) as link:
                    channel = await link.channel()
                    exchange = await channel.get_exchange(topology.SUBMIT_EXCHANGE, ensure=False)
                    message = to_message(message_id, submission(), reply_to)
                    await exchange.publish(
                        message, topology.submit_key(TENANT.name), mandatory=True, timeout=20
                    )
                    return ids.batch_id(TENANT.name, message_id)
            await asyncio.sleep(0.1)

    async def publish_all(self, message_ids: Sequence[str]) -> None:
        """Submit all of these by the bus, many at once; each is confirmed."""
        async with await aio_pika.connect(self.rabbitmq.url(TENANT)) as link:
            channel = await link.channel()
            exchange = await channel.get_exchange(topology.SUBMIT_EXCHANGE, ensure=False)
            slots = asyncio.Semaphore(_AT_ONCE)

            async def send(message_id: str) -> None:
                async with slots:
                    message = to_message(message_id, submission())
                    await exchange.publish(message, topology.submit_key(TENANT.name))

            await asyncio.gather(*map(send, message_ids))

    async def until_planned(self, batch_ids: list[str]) -> None:
        """Return once all of them are `in_progress`."""

        async def are() -> bool:
            statuses = await self.state.batches.statuses(batch_ids)
            return [*statuses.values()] == ["in_progress"] * len(batch_ids)

        await eventually(are, 90)

    async def until_published(self) -> None:
        """Return once nothing waits to be published."""
        await eventually(self.is_published, 90)

    async def is_published(self) -> bool:
        """Whether nothing waits to be published."""
        boxes: tuple[Box, ...] = ("submissions", "events", "replies")
        return not any([await self.state.outbox.length(box) for box in boxes])

    async def is_idle(self) -> bool:
        """Whether nothing waits in the outboxes and in the broker."""
        return await self.is_published() and await self.count(topology.SUBMIT_QUEUE) == 0

    async def count(self, queue: str) -> int:
        """How many messages wait there."""
        async with await aio_pika.connect(self.rabbitmq.url(SERVICE)) as link:
            declared = await (await link.channel()).declare_queue(queue, passive=True)
            return declared.declaration_result.message_count or 0

    async def taken(self, queue: str) -> list[AbstractIncomingMessage]:
        """Everything in a queue."""
        found = []
        async with await aio_pika.connect(self.rabbitmq.url(SERVICE)) as link:
            source = await (await link.channel()).get_queue(queue)
            while (message := await source.get(fail=False, no_ack=True)) is not None:
                found.append(message)
        return found


def submission() -> bytes:
    """A body of one request."""
    request = {
        "custom_id": "a",
        "method": "POST",
        "url": CHAT,
        "body": {"model": "tiny", "messages": []},
    }
    body = {"kind": "inline", "requests": [request]}
    return json.dumps({"schema": "batch.submit/1", "endpoint": CHAT, "input": body}).encode()


def to_message(name: str, body: bytes, reply_to: str | None = None) -> aio_pika.Message:
    """The tenant's batch message."""
    return aio_pika.Message(
        body,
        message_id=name,
        type=SUBMIT,
        user_id=TENANT.name,
        content_type="application/json",
        delivery_mode=2,
        reply_to=reply_to,
    )


@pytest.fixture(scope="module")
def environment(
    tmp_path_factory: pytest.TempPathFactory,
    redis_url: str,
    _mortal_rabbitmq: servers.RabbitMQ,
    s3: S3,
) -> Iterator[dict[str, str]]:
    """Nobody else's Redis database, bucket and broker."""
    folder = tmp_path_factory.mktemp("faults")
    (folder / "catalog.yaml").write_text(CATALOG)
    own_redis = f"{redis_url.rpartition('/')[0]}/12"
    redis: Redis[str] = Redis.from_url(own_redis, decode_responses=True)
    redis.flushdb()
    yield {
        **{name: text for name, text in os.environ.items() if "BATCHYARD" not in name},
        "BATCHYARD_AMQP_URL": _mortal_rabbitmq.url(SERVICE),
        "BATCHYARD_REDIS_URL": own_redis,
        "BATCHYARD_S3_ENDPOINT": s3.endpoint,
        "BATCHYARD_S3_ACCESS_KEY": s3.access_key,
        "BATCHYARD_S3_SECRET_KEY": s3.secret_key,
        "BATCHYARD_S3_BUCKET": f"faults-{secrets.token_hex(4)}",
        "BATCHYARD_SERVICE_USER": SERVICE.name,
        "BATCHYARD_CATALOG": str(folder / "catalog.yaml"),
        "BATCHYARD_PORT": str(free_port()),
        # Nothing listens there: the dispatcher plans without Ray.
        "BATCHYARD_RAY_ADDRESS": f"http://127.0.0.1:{free_port()}",
        "BATCHYARD_RAY_TOKEN": "token",
        "BATCHYARD_LEASE_SECONDS": "2",
        "BATCHYARD_BATCHES_PER_HOUR": "1000000",
    }
    redis.flushdb()
    redis.close()


@pytest.fixture(scope="module")
def processes(
    environment: dict[str, str],
    _mortal_rabbitmq: servers.RabbitMQ,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[Process, Process]]:
    """They end with their tests: on its broker they would take other tests' messages."""
    # What the module before left there is not for these.
    asyncio.run(_purge(_mortal_rabbitmq, topology.SUBMIT_QUEUE, topology.DEAD_QUEUE))
    folder: Path = tmp_path_factory.mktemp("faults-logs")
    gateway = Process("gateway", environment, folder)
    dispatcher = Process("dispatcher", environment, folder)
    try:
        gateway.start()
        dispatcher.start()
        gateway.wait()
        dispatcher.wait()
        yield gateway, dispatcher
    finally:
        dispatcher.stop()
        gateway.stop()


async def _purge(rabbitmq: servers.RabbitMQ, *queues: str) -> None:
    async with await aio_pika.connect(rabbitmq.url(SERVICE)) as link:
        channel = await link.channel()
        for queue in queues:
            await (await channel.get_queue(queue, ensure=False)).purge()


@pytest.fixture
async def yard(
    rabbitmq: servers.RabbitMQ,
    environment: dict[str, str],
    processes: tuple[Process, Process],
) -> AsyncIterator[BrokerYard]:
    state = State(environment["BATCHYARD_REDIS_URL"])
    key = await state.keys.create(TENANT.name)
    async with httpx.AsyncClient(
        base_url=f"http://127.0.0.1:{environment['BATCHYARD_PORT']}",
        headers={"authorization": f"Bearer {key}"},
        timeout=60,
    ) as http:
        row = json.loads(submission())["input"]["requests"][0]
        upload = await http.post(
            "/v1/files",
            files={"file": ("in.jsonl", json.dumps(row).encode() + b"\n")},
            data={"purpose": "batch"},
        )
        assert upload.status_code == 200, upload.text
        yield BrokerYard(rabbitmq, environment, *processes, state, http, upload.json()["id"])
    await state.close()


@pytest.fixture
async def events(rabbitmq: servers.RabbitMQ) -> AsyncIterator[str]:
    """The name of a durable queue that gets every event."""
    name = f"sub.batchyard.{secrets.token_hex(4)}"
    async with await aio_pika.connect(rabbitmq.url(SERVICE)) as link:
        channel = await link.channel()
        arguments: Any = {"x-queue-type": "quorum"}
        queue = await channel.declare_queue(name, durable=True, arguments=arguments)
        await queue.bind(topology.EVENTS_EXCHANGE, "#")
    run_dir = rabbitmq.child.log_file.parent
    await eventually(lambda: are_registered(run_dir, name) and are_bound(run_dir, name), 30)
    yield name
    async with await aio_pika.connect(rabbitmq.url(SERVICE)) as link:
        await (await link.channel()).queue_delete(name)
