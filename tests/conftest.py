"""Real servers for the tests that need them: started once per session, emptied for each test."""

import functools
import secrets
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import aio_pika
import pytest
from hypothesis import HealthCheck, settings
from minio import Minio
from minio.error import S3Error
from redis.asyncio import Redis

from cli import servers
from shared.bus import topology
from shared.bus.connection import Bus
from shared.interpreter import build_types
from shared.state import State
from shared.storage import Storage
from tests.eventually import eventually, wait_until
from tests.on_disk import are_bound, are_registered
from tests.servers import S3, own_rabbitmq, own_redis, some_rabbitmq, some_redis, some_s3

# Each HTTP client would read the authorities of the web anew, which takes 20 ms of a processor: a
# third of what the tests themselves took.
ssl.create_default_context = functools.cache(ssl.create_default_context)  # type: ignore[assignment]

# No test fails because the machine is slow. Each run tries other examples; `make fuzz` tries many.
settings.register_profile(
    "few", max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("many", settings.get_profile("few"), max_examples=2000)
settings.load_profile("few")


def pytest_collection_finish() -> None:
    """As in each process that serves: tests decode in threads too."""
    build_types()


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with some_redis(tmp_path_factory.mktemp("redis")) as url:
        yield url


@pytest.fixture(scope="session")
def amqp_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with some_rabbitmq(tmp_path_factory.mktemp("rabbitmq")) as url:
        yield url


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    with some_s3(tmp_path_factory.mktemp("s3")) as found:
        yield found


@pytest.fixture(scope="session")
def _mortal_rabbitmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.RabbitMQ]:
    run_dir = tmp_path_factory.mktemp("mortal-rabbitmq")
    with own_rabbitmq(run_dir) as server:
        # Killed before, it begins a queue anew, empty and without a leader, or forgets a binding.
        queues = topology.REQUIRED_QUEUES
        wait_until(
            lambda: are_registered(run_dir, *queues) and are_bound(run_dir, *queues), timeout=20
        )
        yield server


@pytest.fixture
def rabbitmq(_mortal_rabbitmq: servers.RabbitMQ) -> servers.RabbitMQ:
    """A broker that nobody else uses: to kill, to restart and to raise alarms in."""
    if not _mortal_rabbitmq.child.is_alive():
        _mortal_rabbitmq.start()
    return _mortal_rabbitmq


@pytest.fixture
def redis_server(tmp_path: Path) -> Iterator[servers.Redis]:
    """A Redis that nobody else uses: to kill, to restart and to configure."""
    with own_redis(tmp_path) as server:
        yield server


@pytest.fixture
async def own_state(redis_server: servers.Redis) -> AsyncIterator[State]:
    """State in a Redis that nobody else uses."""
    state = State(redis_server.url)
    yield state
    await state.close()


@pytest.fixture
def namespace() -> str:
    """A hash tag, as `State` needs one; nobody else's keys begin with it."""
    return f"{{test-{secrets.token_hex(4)}}}:"


@pytest.fixture
async def redis(redis_url: str, namespace: str) -> AsyncIterator["Redis[str]"]:
    """Redis itself, to look behind `State`; the test's keys are gone afterwards."""
    client: Redis[str] = Redis.from_url(redis_url, decode_responses=True)
    yield client
    if keys := [key async for key in client.scan_iter(match=f"{namespace}*", count=1000)]:
        await client.delete(*keys)
    await client.aclose()


@pytest.fixture
async def state(redis_url: str, namespace: str, redis: "Redis[str]") -> AsyncIterator[State]:
    """State in an empty namespace."""
    assert redis is not None
    state = State(redis_url, namespace=namespace)
    yield state
    await state.close()


@pytest.fixture
async def storage(s3: S3) -> AsyncIterator[Storage]:
    """Storage on a bucket of its own."""
    async with a_bucket(s3) as storage:
        yield storage


@pytest.fixture
async def bus(amqp_url: str) -> AsyncIterator[Bus]:
    """A connected bus whose queues are empty."""
    bus = Bus(amqp_url)
    await bus.connect()
    await _purge(amqp_url)
    yield bus
    await bus.close()
    await _purge(amqp_url)


async def _purge(amqp_url: str) -> None:
    async with await aio_pika.connect(amqp_url) as connection:
        channel = await connection.channel()
        for name in topology.REQUIRED_QUEUES:
            await (await channel.get_queue(name)).purge()


@asynccontextmanager
async def a_bucket(s3: S3) -> AsyncIterator[Storage]:
    """A bucket for the block alone."""
    storage = Storage(*s3, f"test-{secrets.token_hex(6)}")
    await storage.prepare()
    yield storage
    await remove_bucket(storage, s3)


async def remove_bucket(storage: Storage, s3: S3) -> None:
    """Remove the bucket, whatever is in it, and close the storage."""

    async def is_removed() -> bool:
        await storage.remove(await storage.keys(""))
        try:
            minio_client(s3).remove_bucket(storage.bucket)
        except S3Error as error:
            # A thread goes on with what it writes when its task is cancelled.
            if error.code == "BucketNotEmpty":
                return False
            raise
        return True

    await eventually(is_removed)
    storage.close()


def minio_client(s3: S3) -> Minio:
    """The server itself, to do what Storage never does."""
    scheme, _, address = s3.endpoint.partition("://")
    return Minio(
        address,
        access_key=s3.access_key,
        secret_key=s3.secret_key,
        secure=scheme == "https",
        region="us-east-1",
    )
