"""A broker in a run directory, as `batchyard up` leaves it, and what logins do there."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import aio_pika
import pytest
from aio_pika.abc import AbstractChannel

from cli import servers
from cli.fleet.credentials import SERVICE_USER, TENANT, read_credentials
from shared.bus.topology import User
from tests.servers import absent

Action = Callable[[AbstractChannel], Awaitable[Any]]


@pytest.fixture(scope="package")
def broker_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a fleet."""
    return tmp_path_factory.mktemp("fleet-with-broker")


@pytest.fixture(scope="package")
def fleet_broker(broker_dir: Path) -> Iterator[servers.RabbitMQ]:
    """Its broker, which runs."""
    if servers.missing(("rabbitmq",)):
        absent("RabbitMQ's programs", "PATH")
    made = read_credentials(broker_dir)
    users = [
        User(SERVICE_USER, made.service_password, tenant=False),
        User(TENANT, made.tenant_password, tenant=True),
    ]
    broker = servers.RabbitMQ(broker_dir / "rabbitmq", users)
    try:
        broker.start()
        yield broker
    finally:
        broker.kill()


@pytest.fixture(autouse=True)
def _no_urls(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AMQP_URL", "REDIS_URL", "SERVICE_USER"):
        monkeypatch.delenv(f"BATCHYARD_{name}", raising=False)


def act(url: str, *actions: Action) -> list[Any]:
    """Perform the actions on one channel of one login; the first error ends it."""

    async def connected() -> list[Any]:
        async with await aio_pika.connect(url, timeout=30) as connection:
            channel = await connection.channel()
            return [await asyncio.wait_for(action(channel), 30) for action in actions]

    return asyncio.run(connected())


def publish(exchange: str, key: str, body: bytes = b"{}", **properties: Any) -> Action:
    """Publish with these properties, and wait for the confirm."""

    async def action(channel: AbstractChannel) -> object:
        message = aio_pika.Message(body, delivery_mode=2, **properties)
        if not exchange:
            return await channel.default_exchange.publish(message, key)
        target = await channel.get_exchange(exchange, ensure=False)
        return await target.publish(message, key, mandatory=True)

    return action


def declare(queue: str) -> Action:
    """A durable queue."""
    return lambda channel: channel.declare_queue(
        queue, durable=True, arguments={"x-queue-type": "quorum"}
    )


def bind(queue: str, exchange: str, key: str) -> Action:
    """A binding of a queue that is there."""

    async def action(channel: AbstractChannel) -> object:
        return await (await channel.get_queue(queue, ensure=False)).bind(exchange, key)

    return action


def bind_exchange(exchange: str, source: str, key: str) -> Action:
    """A binding of an exchange that is there."""

    async def action(channel: AbstractChannel) -> object:
        return await (await channel.get_exchange(exchange, ensure=False)).bind(source, key)

    return action


def take(queue: str) -> Action:
    """The next message, removed; None where there is none."""

    async def action(channel: AbstractChannel) -> object:
        return await (await channel.get_queue(queue, ensure=False)).get(fail=False, no_ack=True)

    return action
