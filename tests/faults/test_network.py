"""A bad network before RabbitMQ, Redis and S3: late, narrow, in pieces, cut, silent, and refused.

The figures are those of a run on demand; a chaos run has all of these on every link.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import pytest

from shared.bus.connection import Bus
from shared.lifecycle import Status
from shared.state import State
from shared.storage import Storage
from tests.batches import validating
from tests.chaos.proxy import FaultProxy
from tests.conftest import remove_bucket
from tests.eventually import eventually
from tests.faults.writers import Write, taken_from, to_publish, writing
from tests.servers import S3

pytestmark = [pytest.mark.on_demand, pytest.mark.timeout(1800)]
_CUTS = 10
_SILENT_SECONDS, _REFUSED_SECONDS = 40.0, 8.0
_BAD_SECONDS = 10.0


async def test_the_bus(amqp_url: str) -> None:
    async with _before(amqp_url) as (proxy, url):
        bus = Bus(url)
        await bus.connect()
        taken = await taken_from(bus)

        confirmed = await _endure(proxy, to_publish(bus))

        await eventually(lambda: confirmed <= taken, 120)
        await bus.close()


async def test_the_state(redis_url: str) -> None:
    async with _before(redis_url) as (proxy, url):
        namespace = f"{{test-{secrets.token_hex(4)}}}:"
        state, straight = State(url, namespace=namespace), State(redis_url, namespace=namespace)
        batches: dict[str, str] = {}

        async def write(name: str) -> None:
            batches[name] = await validating(state)

        confirmed = await _endure(proxy, write)

        found = await straight.batches.statuses([batches[name] for name in confirmed])
        assert list(found.values()) == [Status.VALIDATING] * len(confirmed)
        await state.close()
        await straight.close()


async def test_the_storage(s3: S3) -> None:
    async with _before(s3.endpoint) as (proxy, url):
        storage = Storage(url, s3.access_key, s3.secret_key, f"net-{secrets.token_hex(6)}")
        await storage.prepare()

        async def write(name: str) -> None:
            await storage.put(name, name.encode() * 1000)

        confirmed = await _endure(proxy, write)

        for name in confirmed:
            assert await storage.get(name) == name.encode() * 1000
        await remove_bucket(storage, s3)


async def _endure(proxy: FaultProxy, write: Write) -> set[str]:
    """The names of all that was confirmed, under each fault and after it."""
    async with writing(write) as confirmed:
        for name, seconds in _faults(proxy):
            await asyncio.sleep(seconds)
            proxy.heal()
            took = await confirmed.more()
            print(f"{name} for {seconds} s: goes on {took:.1f} s after it, {len(confirmed)} so far")  # noqa: T201
    return confirmed


def _faults(proxy: FaultProxy) -> Iterator[tuple[str, float]]:
    """Each fault with the seconds that it lasts."""
    proxy.latency = 0.2
    yield "200 ms late", _BAD_SECONDS
    proxy.rate = 20_000
    yield "20 kB/s", _BAD_SECONDS
    proxy.chunk_bytes = 7
    yield "7 bytes at a time", _BAD_SECONDS
    for _ in range(_CUTS):
        # In the middle of whatever is on its way.
        proxy.chunk_bytes = 7
        proxy.cut()
        yield "cut", 0.5
    proxy.hang()
    yield "silent", _SILENT_SECONDS
    proxy.refuses = True
    proxy.cut()
    yield "refused", _REFUSED_SECONDS


@asynccontextmanager
async def _before(url: str) -> AsyncIterator[tuple[FaultProxy, str]]:
    """A proxy, and the URL of what is behind it."""
    parts = urlsplit(url)
    proxy = FaultProxy((parts.hostname or "", parts.port or 0))
    port = await proxy.start()
    login, at, _ = parts.netloc.rpartition("@")
    try:
        yield proxy, parts._replace(netloc=f"{login}{at}127.0.0.1:{port}").geturl()
    finally:
        await proxy.close()
