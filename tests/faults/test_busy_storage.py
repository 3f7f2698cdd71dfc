"""S3 answers 503, `SlowDown` or 500, sometimes or always, even after it has done the work."""

import asyncio
import os
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest

from shared.storage import Storage
from tests.conftest import a_bucket, minio_client
from tests.eventually import eventually
from tests.faults.s3_proxy import Judge, Refusal, S3Proxy, s3_proxy
from tests.faults.writers import Confirmed, writing
from tests.servers import S3

pytestmark = pytest.mark.timeout(1800)
#: Of a run on demand; the short one has as many for all of it.
_SECONDS = float(os.environ.get("S3_BUSY_SECONDS", "60"))
_MAX_TRIES = 5
_EVERYTHING = "503 to everything"
#: Enough for an upload in two parts.
_LARGE_BYTES = 9 * 1024 * 1024
_UPLOADS_EVERY = 50
#: At least so much of the rate before counts as all of it, in a second that is one of many.
_FULL = 0.8

Write = Callable[[Storage, str, bytes], Awaitable[object]]


@pytest.fixture
def proxy(s3: S3) -> Iterator[S3Proxy]:
    with s3_proxy(s3.endpoint) as proxy:
        yield proxy


@pytest.fixture
async def straight(s3: S3) -> AsyncIterator[Storage]:
    """The bucket, past the proxy."""
    async with a_bucket(s3) as storage:
        yield storage


@pytest.fixture
async def storage(s3: S3, proxy: S3Proxy, straight: Storage) -> AsyncIterator[Storage]:
    """The same bucket behind the proxy."""
    storage = Storage(proxy.endpoint, s3.access_key, s3.secret_key, straight.bucket)
    yield storage
    storage.close()


async def test_what_a_busy_s3_has_confirmed_is_there_and_no_call_is_tried_for_ever(
    storage: Storage, straight: Storage, proxy: S3Proxy, s3: S3
) -> None:
    await _endure(storage, straight, proxy, s3, seconds=1)


@pytest.mark.on_demand
async def test_what_an_s3_that_is_busy_for_minutes_has_confirmed_is_there(
    storage: Storage, straight: Storage, proxy: S3Proxy, s3: S3
) -> None:
    confirmed = await _endure(storage, straight, proxy, s3, seconds=_SECONDS)

    print(f"s3: {confirmed} objects confirmed, 0 lost, {proxy.refused} answers refused")  # noqa: T201


async def _endure(
    storage: Storage, straight: Storage, proxy: S3Proxy, s3: S3, *, seconds: float
) -> int:
    """Returns how many objects were confirmed."""
    dice, small = random.Random(7), (_put, _create, _put_once, _read)
    bodies: dict[str, bytes] = {}

    async def write(name: str) -> None:
        # Each name once: what is tried too often then is one call, and not its caller's next.
        number = int(name.partition(".")[2])
        kind: Write = small[number % len(small)] if number % _UPLOADS_EVERY else _upload
        body = dice.randbytes(_LARGE_BYTES if kind is _upload else 100)
        if kind is _read:
            await straight.put(name, body)
        await kind(storage, name, body)
        bodies[name] = body

    async with writing(write) as confirmed:
        rate = await _rate(confirmed, min(5.0, seconds))
        for name, judge, share in _faults(dice):
            before, refused = len(confirmed), proxy.refused
            proxy.judge = judge
            await asyncio.sleep(seconds * share)
            # On a busy machine there may have been few calls.
            await eventually(lambda: proxy.refused > refused)  # noqa: B023  # it is over here
            if name == _EVERYTHING:
                await eventually(lambda: proxy.max_tries >= _MAX_TRIES)
            proxy.judge = None
            meanwhile = len(confirmed) - before
            took = await confirmed.more()
            full = await _until_full(confirmed, rate)
            print(  # noqa: T201
                f"{name} for {seconds * share:.0f} s: {meanwhile} confirmed meanwhile, "
                f"{proxy.refused - refused} answers refused; after it the next one in {took:.1f} s "
                f"and {_FULL:.0%} of {rate:.0f} a second within {full:.1f} s"
            )
    assert proxy.max_tries == _MAX_TRIES, proxy.tries.most_common(3)
    for name in confirmed:
        assert await straight.get(name) == bodies[name]
    # Those that nobody knows of, as their first answer was another one, are for the sweep.
    await straight.abort_older_than(0)
    page = minio_client(s3)._list_multipart_uploads(straight.bucket)  # noqa: SLF001  # there is no public way
    assert page.uploads == []
    return len(confirmed)


def _faults(dice: random.Random) -> Iterator[tuple[str, Judge, float]]:
    """Each with the share of the run's seconds that it lasts."""

    def sometimes(chance: float, refusal: Refusal) -> Judge:
        return lambda *_: refusal if dice.random() < chance else None

    unavailable = Refusal(503, "ServiceUnavailable")
    yield "503 to a fifth", sometimes(0.2, unavailable), 1.0
    yield _EVERYTHING, sometimes(1.0, unavailable), 0.5
    yield "SlowDown to a half", sometimes(0.5, Refusal(503, "SlowDown")), 0.5
    done = Refusal(500, "InternalError", after_the_work=True)
    yield "500 to a fifth, after the work", sometimes(0.2, done), 0.5


async def _rate(confirmed: Confirmed, seconds: float) -> float:
    before = len(confirmed)
    await asyncio.sleep(seconds)
    return (len(confirmed) - before) / seconds


async def _until_full(confirmed: Confirmed, rate: float) -> float:
    """Seconds until a second has most of that rate."""
    loop = asyncio.get_running_loop()
    began, history = loop.time(), [(loop.time(), len(confirmed))]

    def is_full() -> bool:
        now = loop.time()
        history.append((now, len(confirmed)))
        while history[0][0] < now - 1:
            history.pop(0)
        since, before = history[0]
        return now - since > 0.5 and len(confirmed) - before >= _FULL * rate * (now - since)

    await eventually(is_full, 120)
    return loop.time() - began


async def _put(storage: Storage, key: str, body: bytes) -> None:
    await storage.put(key, body)


async def _create(storage: Storage, key: str, body: bytes) -> None:
    # Taken: by ourselves, since nobody else has this key.
    await storage.create(key, body)


async def _put_once(storage: Storage, key: str, body: bytes) -> None:
    assert await storage.put_once(key, body) is not None


async def _read(storage: Storage, key: str, body: bytes) -> None:
    assert await storage.get(key) == body


async def _upload(storage: Storage, key: str, body: bytes) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        yield body

    await storage.upload(key, chunks())
