"""Redis has no memory left, or S3 no room: calls ask to come back, messages wait, nothing is lost.

RabbitMQ's alarms are in `test_broker.py`; Redis's full disk, of which it dies, is an outage.
"""

import asyncio
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from itertools import count

import httpx
import pytest
from redis.asyncio import Redis

from shared.bus import topology
from tests.eventually import eventually
from tests.faults.conftest import CHAT, BrokerYard
from tests.faults.s3_proxy import Refusal, S3Proxy, s3_proxy
from tests.servers import S3, own_redis

# Includes the start of the servers, on a busy machine.
pytestmark = pytest.mark.timeout(600)
_PAUSE_SECONDS = 0.05
#: Enough of each to be in the middle of things.
_SOME = 5


@pytest.fixture(scope="module")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a Redis for this test alone."""
    with own_redis(tmp_path_factory.mktemp("full-redis")) as server:
        yield server.url


@pytest.fixture(scope="module")
def proxy(s3: S3) -> Iterator[S3Proxy]:
    with s3_proxy(s3.endpoint) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def environment(environment: dict[str, str], proxy: S3Proxy) -> dict[str, str]:
    """The yard's, with S3 behind the proxy."""
    return {**environment, "BATCHYARD_S3_ENDPOINT": proxy.endpoint}


class Load:
    """Callers that upload, create and publish, each trying one thing until it succeeds."""

    def __init__(self, yard: BrokerYard) -> None:
        self._yard = yard
        self._run = secrets.token_hex(4)
        self.enough = asyncio.Event()
        self.answers: Counter[tuple[str, int]] = Counter()
        self.files: list[str] = []
        self.batches: list[str] = []
        self.published: list[str] = []
        self.working: list[asyncio.Task[None]] = []

    async def upload(self) -> None:
        for number in count():
            files = {"file": (f"{number}.jsonl", b"{}\n")}
            answer = await self._until_done(
                "upload", "/v1/files", files=files, data={"purpose": "batch"}
            )
            self.files.append(answer.json()["id"])
            if self.enough.is_set():
                return

    async def create(self) -> None:
        params = {
            "input_file_id": self._yard.file_id,
            "endpoint": CHAT,
            "completion_window": "24h",
        }
        for number in count():
            key = {"idempotency-key": f"{self._run}-{number}"}
            answer = await self._until_done("create", "/v1/batches", json=params, headers=key)
            self.batches.append(answer.json()["id"])
            if self.enough.is_set():
                return

    async def publish(self) -> None:
        for number in count():
            self.published.append(await self._yard.publish(f"{self._run}.{number}"))
            if self.enough.is_set():
                return

    async def _until_done(self, name: str, path: str, **arguments: object) -> httpx.Response:
        while True:
            answer = await self._yard.http.post(path, **arguments)  # type: ignore[arg-type]  # httpx's own names
            self.answers[name, answer.status_code] += 1
            if answer.status_code == HTTPStatus.OK:
                return answer
            assert answer.status_code == HTTPStatus.SERVICE_UNAVAILABLE, answer.text
            assert answer.headers["retry-after"]
            await asyncio.sleep(_PAUSE_SECONDS)


@asynccontextmanager
async def _load(yard: BrokerYard) -> AsyncIterator[Load]:
    """Load for the block; afterwards all that was accepted has to be there."""
    load = Load(yard)
    load.working += map(asyncio.create_task, (load.upload(), load.create(), load.publish()))
    try:
        await _more(load)
        yield load
        await _more(load)
    finally:
        load.enough.set()
        ends = await asyncio.gather(*load.working, return_exceptions=True)
        assert ends == [None] * len(load.working)
    batches = [*load.batches, *load.published]
    assert len(set(batches)) == len(batches)
    await yard.until_planned(batches)
    await yard.until_published()
    for file_id in load.files:
        content = await yard.http.get(f"/v1/files/{file_id}/content")
        assert (content.status_code, content.content) == (HTTPStatus.OK, b"{}\n")
    assert await yard.count(topology.DEAD_QUEUE) == 0


async def _more(load: Load) -> None:
    """Return once more of everything is done."""
    lists = (load.files, load.batches, load.published)
    goals = [len(done) + _SOME for done in lists]

    def are_done() -> bool:
        assert not any(task.done() for task in load.working)
        return all(len(done) >= goal for done, goal in zip(lists, goals, strict=True))

    await eventually(are_done, 120)


async def test_while_redis_has_no_memory_left_calls_ask_to_come_back_and_messages_wait(
    yard: BrokerYard, redis_url: str
) -> None:
    redis: Redis[str] = Redis.from_url(redis_url, decode_responses=True)
    async with _load(yard) as load:
        used = (await redis.info("memory"))["used_memory"]
        await redis.config_set("maxmemory", used // 2)
        try:
            waiting = await yard.publish(f"full.{secrets.token_hex(4)}")
            load.answers.clear()
            await eventually(lambda: _are_refused(load, "upload", "create"), 120)
            ready = await yard.http.get("/readyz")
            assert await yard.state.batches.statuses([waiting]) == {}
        finally:
            await redis.config_set("maxmemory", 0)
    await redis.aclose()

    assert (ready.status_code, ready.json()["redis"]) == (503, "does not answer")
    await yard.until_planned([waiting])


@pytest.mark.parametrize(
    "refusal",
    [Refusal(507, "XMinioStorageFull"), Refusal(403, "QuotaExceeded")],
    ids=lambda refusal: refusal.code,
)
async def test_while_s3_has_no_room_left_calls_ask_to_come_back_and_messages_wait(
    refusal: Refusal, yard: BrokerYard, proxy: S3Proxy
) -> None:
    async with _load(yard) as load:
        proxy.judge = lambda method, _: refusal if method in ("PUT", "POST") else None
        try:
            waiting = await yard.publish(f"full.{secrets.token_hex(4)}")
            load.answers.clear()
            await eventually(lambda: _are_refused(load, "upload", "create"), 120)
            assert await yard.state.batches.statuses([waiting]) == {}
        finally:
            proxy.judge = None

    await yard.until_planned([waiting])


def _are_refused(load: Load, *names: str) -> bool:
    """Whether calls by each of these names were."""
    assert not any(task.done() for task in load.working)
    return all(load.answers[name, HTTPStatus.SERVICE_UNAVAILABLE] > 1 for name in names)
