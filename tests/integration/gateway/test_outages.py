"""What clients and probes see while a service is away."""

import time
from collections.abc import AsyncIterator, Iterator

import httpx
import pytest

from cli import servers
from gateway.settings import GatewaySettings
from shared.state import State
from tests.eventually import eventually
from tests.integration.gateway.conftest import Caller, Gateway, calling, running


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

    await eventually(is_served, timeout=20)
