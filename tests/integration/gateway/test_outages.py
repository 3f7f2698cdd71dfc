"""What clients and probes see while a service is away."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from typing import NamedTuple
from urllib.parse import urlsplit

import httpx
import pytest
from redis.asyncio import Redis

from cli import servers
from gateway.settings import GatewaySettings
from shared import ids
from shared.state import State
from tests.chaos.proxy import FaultProxy
from tests.eventually import eventually
from tests.integration.gateway.conftest import Caller, Gateway, calling, running

_PATIENCE_SECONDS = 3.0
_JSON = {"content-type": "application/json"}


class Linked(NamedTuple):
    """A caller of a gateway whose links to Redis and S3 can fail."""

    caller: Caller
    redis: FaultProxy
    s3: FaultProxy


@pytest.fixture
async def linked(settings: GatewaySettings) -> AsyncIterator[Linked]:
    urls = {"redis_url": settings.redis_url.get_secret_value(), "s3_endpoint": settings.s3_endpoint}
    proxies, changes = [], dict[str, str | float](patience_seconds=_PATIENCE_SECONDS)
    for name, url in urls.items():
        parts = urlsplit(url)
        proxy = FaultProxy((parts.hostname or "", parts.port or 0))
        login = parts.netloc.rpartition("@")[0]
        address = f"127.0.0.1:{await proxy.start()}"
        changes[name] = parts._replace(netloc=f"{login}@{address}" if login else address).geturl()
        proxies.append(proxy)
    state = State(urls["redis_url"])
    with ExitStack() as stack:
        # In a thread, so that the proxies work meanwhile.
        own = GatewaySettings.model_validate({**settings.model_dump(), **changes})
        gateway = await asyncio.to_thread(stack.enter_context, running(own))
        async with calling(gateway, state) as caller:
            yield Linked(caller, *proxies)
        for proxy in proxies:
            proxy.heal()
        await asyncio.to_thread(stack.close)
    for proxy in proxies:
        await proxy.close()
    await state.close()


@pytest.fixture
def fragile(settings: GatewaySettings, redis_server: servers.Redis) -> Iterator[Gateway]:
    """A gateway over a Redis that may be killed."""
    changes = {"redis_url": redis_server.url}
    with running(GatewaySettings.model_validate({**settings.model_dump(), **changes})) as gateway:
        yield gateway


@pytest.fixture
async def caller(fragile: Gateway, redis_server: servers.Redis) -> AsyncIterator[Caller]:
    state = State(redis_server.url)
    async with calling(fragile, state) as caller:
        await state.close()
        yield caller


async def test_a_gateway_in_order_is_live_and_ready_for_everybody(gateway: Gateway) -> None:
    async with httpx.AsyncClient(base_url=gateway.url) as probe:
        live, ready = await probe.get("/healthz"), await probe.get("/readyz")

    assert (live.status_code, live.json()) == (200, {"status": "ok"})
    assert (ready.status_code, ready.json()) == (
        200,
        {"status": "ok", "redis": "ok", "s3": "ok", "rabbitmq": "ok"},
    )


async def test_without_redis_it_is_live_but_not_ready(
    caller: Caller, redis_server: servers.Redis
) -> None:
    redis_server.kill()

    ready = await caller.http.get("/readyz")
    live = await caller.http.get("/healthz")

    assert ready.status_code == 503
    assert ready.json() == {
        "status": "not ready",
        "redis": "does not answer",
        "s3": "ok",
        "rabbitmq": "ok",
    }
    assert live.status_code == 200


async def test_without_redis_calls_ask_to_come_back_and_then_succeed(
    caller: Caller, redis_server: servers.Redis
) -> None:
    redis_server.kill()
    began = time.monotonic()

    refused = await caller.http.get("/v1/models")

    assert time.monotonic() - began < 30
    assert refused.status_code == 503
    assert refused.headers["retry-after"] == "5"
    assert refused.headers["x-request-id"].startswith("req_")
    assert refused.json()["error"]["type"] == "server_error"
    assert "127.0.0.1" not in refused.text
    redis_server.start()

    async def is_served() -> bool:
        return (await caller.http.get("/v1/models")).status_code == 200

    await eventually(is_served)


async def test_what_a_redis_at_its_bound_refuses_asks_to_come_back(
    caller: Caller, redis_server: servers.Redis
) -> None:
    http, admin = caller.http, Redis.from_url(redis_server.url)
    uploaded = await _upload(http)
    params = {
        "input_file_id": uploaded.json()["id"],
        "endpoint": "/v1/embeddings",
        "completion_window": "24h",
    }
    await admin.config_set("maxmemory", 1)

    writes = [await _upload(http), await http.post("/v1/batches", json=params)]
    live, ready = await http.get("/healthz"), await http.get("/readyz")
    await admin.config_set("maxmemory", 0)
    created = await http.post("/v1/batches", json=params)

    await admin.aclose()
    assert uploaded.status_code == 200
    _assert_come_back(*writes)
    assert (live.status_code, ready.json()["redis"]) == (200, "does not answer")
    assert created.status_code == 200


@pytest.mark.parametrize("fault", ["silent", "refused"])
async def test_a_redis_that_never_answers_is_named_and_calls_ask_to_come_back(
    fault: str, linked: Linked
) -> None:
    http = linked.caller.http
    _begin(linked.redis, fault)

    answers = await asyncio.gather(http.get("/v1/models"), _upload(http), http.get("/readyz"))

    _assert_come_back(*answers[:2])
    assert answers[2].json()["redis"] == "does not answer"
    linked.redis.heal()
    await eventually(lambda: _is_well(http), 60)


@pytest.mark.parametrize("fault", ["silent", "refused", "busy"])
async def test_an_s3_that_is_away_is_named_and_what_needs_it_asks_to_come_back(
    fault: str, linked: Linked, monkeypatch: pytest.MonkeyPatch
) -> None:
    http = linked.caller.http
    busy = await asyncio.start_server(_answer_busy, "127.0.0.1", 0)
    if fault == "busy":
        monkeypatch.setattr(linked.s3, "_target", busy.sockets[0].getsockname())
        linked.s3.cut()
    else:
        _begin(linked.s3, fault)

    # More at once than the gateway has threads for S3.
    *uploads, ready, models = await asyncio.gather(
        *(_upload(http) for _ in range(40)), http.get("/readyz"), http.get("/v1/models")
    )

    _assert_come_back(*uploads)
    assert (ready.status_code, ready.json()["s3"]) == (503, "does not answer")
    assert models.status_code == 200
    monkeypatch.undo()
    busy.close()
    linked.s3.heal()
    await eventually(lambda: _is_well(http), 60)
    assert (await _upload(http)).status_code == 200


def _begin(proxy: FaultProxy, fault: str) -> None:
    if fault == "silent":
        proxy.hang()
    else:
        proxy.refuses = True
        proxy.cut()


async def _answer_busy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """As S3 does that has too much to do."""
    body = b"<Error><Code>SlowDown</Code><Message>Busy.</Message></Error>"
    asked = (await reader.readuntil(b"\r\n\r\n")).lower()
    length = asked.partition(b"content-length: ")[2].partition(b"\r\n")[0]
    await reader.readexactly(int(length or 0))
    head = b"HTTP/1.1 503 Slow Down\r\nconnection: close\r\ncontent-type: application/xml\r\n"
    writer.write(head + b"content-length: %d\r\n\r\n" % len(body) + body)
    await writer.drain()
    writer.close()


def _assert_come_back(*answers: httpx.Response) -> None:
    assert {answer.status_code for answer in answers} == {503}
    assert {answer.headers["retry-after"] for answer in answers} == {"5"}


async def _upload(http: httpx.AsyncClient) -> httpx.Response:
    files, data = {"file": ("in.jsonl", b"{}\n")}, {"purpose": "batch"}
    return await http.post("/v1/files", files=files, data=data)


async def _is_well(http: httpx.AsyncClient) -> bool:
    return (await http.get("/readyz")).status_code == 200


async def test_what_is_missing_because_redis_is_made_again_is_asked_for_once_more(
    acme: Caller, gateway_state: State
) -> None:
    path, key_id = "/v1/batches/batch_1", ids.api_key_id(ids.api_key_digest(acme.key))

    async def is_admitted() -> bool:
        return (await gateway_state.keys.find(key_id)).last_used is not None

    async def body() -> AsyncIterator[bytes]:
        yield b'{"priority": '
        await eventually(is_admitted)
        await gateway_state.restore.begin()
        yield b"9}"

    try:
        before = await acme.http.post(path, content=body(), headers=_JSON)
        within = await acme.http.get(path)
    finally:
        await gateway_state.restore.end()
    after = await acme.http.get(path)

    assert [answer.status_code for answer in (before, within, after)] == [503, 503, 404]
    assert "retry-after" in before.headers
