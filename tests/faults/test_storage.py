"""S3 does the work and its answer is lost: the object is there once, and it is ours."""

import os
import random
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from urllib.parse import urlsplit

import pytest

from shared.errors import TransientError
from shared.storage import Storage
from tests.chaos.proxy import FaultProxy
from tests.conftest import minio_client, remove_bucket
from tests.servers import S3

pytestmark = pytest.mark.timeout(3600)
_CUTS = int(os.environ.get("S3_CUTS", "1000"))
#: Enough for an upload in two parts.
_LARGE_BYTES = 9 * 1024 * 1024
#: An upload in parts has no more answers.
_MAX_ANSWERS = 6

Write = Callable[[Storage, str, bytes], Awaitable[object]]


@pytest.fixture
async def proxy(s3: S3) -> AsyncIterator[FaultProxy]:
    parts = urlsplit(s3.endpoint)
    proxy = FaultProxy((parts.hostname or "", parts.port or 80))
    yield proxy
    await proxy.close()


@pytest.fixture
async def storage(s3: S3, proxy: FaultProxy) -> AsyncIterator[Storage]:
    """A separate bucket behind the proxy."""
    keys = s3.access_key, s3.secret_key
    storage = Storage(
        f"http://127.0.0.1:{await proxy.start()}", *keys, f"cut-{secrets.token_hex(6)}"
    )
    await storage.prepare()
    yield storage
    proxy.heal()
    await remove_bucket(storage, s3)


async def test_an_object_whose_answer_was_lost_is_there_once_and_ours(
    storage: Storage, proxy: FaultProxy, s3: S3
) -> None:
    await _cut(storage, proxy, s3, cuts=16)


@pytest.mark.on_demand
async def test_a_thousand_objects_whose_answers_were_lost_are_there_once_and_ours(
    storage: Storage, proxy: FaultProxy, s3: S3
) -> None:
    await _cut(storage, proxy, s3, cuts=_CUTS)

    print(f"s3: {_CUTS} answers lost, each object once and right")  # noqa: T201


async def _cut(storage: Storage, proxy: FaultProxy, s3: S3, *, cuts: int) -> None:
    dice = random.Random(7)
    kinds: list[tuple[Write, int]] = [(_put, 9), (_create, 9), (_put_once, 9), (_upload, 1)]
    written: dict[str, bytes] = {}
    unknown = 0
    for number in range(cuts):
        write, _ = (
            kinds[number % len(kinds)]
            if number < len(kinds)
            else dice.choices(kinds, [weight for _, weight in kinds])[0]
        )
        body = dice.randbytes(_LARGE_BYTES if write is _upload else 100)
        proxy.answers_to_pass = dice.randrange(_MAX_ANSWERS) if write is _upload else 0
        proxy.answers_to_lose = 1
        unknown += write is _upload and proxy.answers_to_pass == 0
        key = f"{write.__name__}/{number}"

        await write(storage, key, body)

        assert write is _upload or proxy.answers_to_lose == 0
        proxy.heal()
        assert await storage.get(key) == body
        written[key] = body
    assert set(await storage.keys("")) == set(written)
    # Of an upload whose first answer was lost nobody has the id: it waits for the sweep.
    assert await storage.abort_older_than(0) <= unknown
    page = minio_client(s3)._list_multipart_uploads(storage.bucket)  # noqa: SLF001  # there is no public way
    assert page.uploads == []


async def _put(storage: Storage, key: str, body: bytes) -> None:
    stored = await storage.put(key, body)

    assert stored == await storage.stat(key)


async def _create(storage: Storage, key: str, body: bytes) -> None:
    # A caller who learns that it exists reads `body`, as is asserted for all.
    assert not await storage.create(key, body)


async def _put_once(storage: Storage, key: str, body: bytes) -> None:
    stored = await storage.put_once(key, body)

    assert stored == await storage.stat(key)


async def _upload(storage: Storage, key: str, body: bytes) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        yield body

    while True:
        # As its callers do: of what came last, nobody could tell whether it happened.
        with suppress(TransientError):
            await storage.upload(key, chunks())
            return
