"""S3's gateway, or all of Ceph, is killed under load: every acknowledged object is there."""

import asyncio
import os
import random
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import cycle, islice

import pytest

from cli import servers
from shared.storage import Storage
from tests.eventually import eventually
from tests.faults.writers import Confirmed, writing
from tests.servers import absent

pytestmark = [pytest.mark.on_demand, pytest.mark.timeout(3600)]
_KEYS = secrets.token_hex(10), secrets.token_hex(20)
_KILLS = int(os.environ.get("S3_KILLS", "9"))
_MIN_OBJECTS = 1000
#: Of the gateway alone, and then of everything.
_GATEWAY_TURNS = 2
#: Some are so large that they go in two parts.
_LARGE_BYTES = 9 * 1024 * 1024
_LARGE_EVERY = 50


@pytest.fixture
def ceph(tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.CephS3]:
    """A Ceph for this test alone."""
    if servers.missing(("ceph",)):
        absent("Ceph's programs", "PATH")
    server = servers.CephS3(tmp_path_factory.mktemp("mortal-s3"), *_KEYS)
    try:
        server.start()
        yield server
    finally:
        server.kill()


@pytest.fixture
async def storage(ceph: servers.CephS3) -> AsyncIterator[Storage]:
    storage = Storage(ceph.endpoint, *_KEYS, "mortal")
    await storage.prepare()
    yield storage
    storage.close()


async def test_ceph_killed_under_load_loses_no_object_that_was_acknowledged(
    ceph: servers.CephS3, storage: Storage
) -> None:
    dice = random.Random(7)
    bodies: dict[str, bytes] = {}

    async def write(name: str) -> None:
        is_large = int(name.partition(".")[2]) % _LARGE_EVERY == 0
        body = dice.randbytes(_LARGE_BYTES if is_large else dice.randrange(1, 10_000))
        # Before it is there: what has no answer may be there or not, but as nothing else.
        bodies[name] = body
        await (storage.upload(name, _chunks(body)) if is_large else storage.put(name, body))

    async with writing(write) as confirmed:
        for kill in islice(cycle(_turns(ceph)), _KILLS):
            await _some(confirmed, _MIN_OBJECTS // _KILLS)
            kill()
            await asyncio.to_thread(ceph.wait)
            took = await confirmed.more()
            print(f"{kill.__name__}: goes on {took:.1f} s after it serves, {len(confirmed)} so far")  # noqa: T201
        await _some(confirmed, max(0, _MIN_OBJECTS - len(confirmed)))

    lost = [name for name in confirmed if await storage.get(name) != bodies[name]]
    assert lost == []
    there = await storage.keys("")
    assert confirmed <= set(there) <= set(bodies)
    for name in set(there) - confirmed:
        assert await storage.get(name) == bodies[name]
    print(f"s3: {_KILLS} kills, {len(confirmed)} objects acknowledged, 0 lost")  # noqa: T201


def _turns(ceph: servers.CephS3) -> list[Callable[[], None]]:
    def gateway() -> None:
        ceph.kill_gateway()
        ceph.children[-1].start()

    def everything() -> None:
        ceph.kill()
        ceph.launch()

    return [*[gateway] * _GATEWAY_TURNS, everything]


async def _some(confirmed: Confirmed, more: int) -> None:
    """Return once this many more are there."""
    goal = len(confirmed) + more
    await eventually(lambda: len(confirmed) >= goal, 600)


async def _chunks(body: bytes) -> AsyncIterator[bytes]:
    yield body
