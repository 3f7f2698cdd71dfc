import asyncio
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager

import httpx
import pytest

from dispatcher import health
from dispatcher.cluster import Cluster
from shared.bus.connection import Bus
from shared.bus.topology import DEAD_EXCHANGE, DEAD_KEY, DEAD_QUEUE
from shared.state import State
from shared.storage import Storage
from tests.batches import in_progress
from tests.eventually import eventually

_TOKEN = "a token of this test"


async def test_a_well_dispatcher_says_so_to_anybody(state: State, bus: Bus) -> None:
    async with _http(state, bus) as http:
        alive, ready = await asyncio.gather(http.get("/healthz"), http.get("/readyz"))

    assert (alive.status_code, alive.text) == (200, "ok\n")
    assert (ready.status_code, ready.json()) == (
        200,
        {"status": "ok", "redis": "ok", "rabbitmq": "ok"},
    )


async def test_without_redis_it_lives_and_is_not_ready(bus: Bus) -> None:
    gone = State("redis://127.0.0.1:1/0")
    async with _http(gone, bus) as http:
        alive, ready = await asyncio.gather(http.get("/healthz"), http.get("/readyz"))

    await gone.close()
    assert (alive.status_code, ready.status_code) == (200, 503)
    assert ready.json() == {"status": "not ready", "redis": "does not answer", "rabbitmq": "ok"}


async def test_without_s3_and_ray_it_names_them_and_no_address(
    state: State, bus: Bus, storage: Storage
) -> None:
    ray = Cluster("http://127.0.0.1:1", "token")
    silent = Storage("http://127.0.0.1:1", "a", "b", "c")
    others = {"s3": silent.ping, "ray": ray.ping, "own": storage.ping}
    async with _http(state, bus, others=others) as http:
        ready = await http.get("/readyz")

    await ray.close()
    silent.close()
    assert ready.status_code == 503
    assert ready.json() == {
        "status": "not ready",
        "redis": "ok",
        "rabbitmq": "ok",
        "s3": "does not answer",
        "ray": "does not answer",
        "own": "ok",
    }


async def test_its_numbers_are_for_the_bearer_of_the_token(state: State, bus: Bus) -> None:
    await in_progress(state)
    await bus.publish(DEAD_EXCHANGE, DEAD_KEY, b"?", properties={"message_id": "m"}, mandatory=True)
    # A quorum queue counts a message some moments after its confirm.
    await eventually(lambda: _has_dead_letters(bus))
    async with _http(state, bus) as http:
        answer = await http.get("/metrics", headers={"authorization": f"Bearer {_TOKEN}"})

    assert answer.headers["content-type"].startswith("text/plain")
    assert 'batchyard_batches{status="in_progress"} 1.0' in answer.text
    assert 'batchyard_service_up{service="rabbitmq"} 1.0' in answer.text
    assert "batchyard_dispatcher_leads 1.0" in answer.text
    assert "batchyard_dead_letters 1.0" in answer.text


@pytest.mark.parametrize("header", [{}, {"authorization": "Bearer wrong"}])
async def test_its_numbers_are_for_nobody_else(
    state: State, bus: Bus, header: dict[str, str]
) -> None:
    async with _http(state, bus) as http:
        answer = await http.get("/metrics", headers=header)

    assert answer.status_code == 401
    assert "batchyard_" not in answer.text


async def test_without_a_token_there_are_no_numbers(state: State, bus: Bus) -> None:
    async with _http(state, bus, token=None) as http:
        answer = await http.get("/metrics", headers={"authorization": "Bearer None"})

    assert answer.status_code == 404


async def test_a_broker_that_is_gone_is_reported_and_the_rest_is_still_counted(
    state: State,
) -> None:
    await in_progress(state)
    async with _http(state, Bus("amqp://nobody@127.0.0.1:1/")) as http:
        answer = await http.get("/metrics", headers={"authorization": f"Bearer {_TOKEN}"})

    assert 'batchyard_service_up{service="rabbitmq"} 0.0' in answer.text
    assert 'batchyard_batches{status="in_progress"} 1.0' in answer.text
    assert "batchyard_dead_letters" not in answer.text


async def test_the_metrics_say_which_of_s3_and_ray_answers(
    state: State, bus: Bus, storage: Storage
) -> None:
    ray = Cluster("http://127.0.0.1:1", "token")
    silent = Storage("http://127.0.0.1:1", "a", "b", "c")
    others = {"s3": silent.ping, "ray": ray.ping, "own": storage.ping}
    async with _http(state, bus, others=others) as http:
        answer = await http.get("/metrics", headers={"authorization": f"Bearer {_TOKEN}"})

    await ray.close()
    silent.close()
    up = dict(re.findall(r'batchyard_service_up{service="(\w+)"} (\d)', answer.text))
    assert up == {"redis": "1", "rabbitmq": "1", "s3": "0", "ray": "0", "own": "1"}


async def test_a_redis_that_never_answers_is_reported(bus: Bus) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        state = State(f"redis://127.0.0.1:{silent.getsockname()[1]}/0")
        async with _http(state, bus, patience_seconds=0.2) as http:
            answer = await http.get("/metrics", headers={"authorization": f"Bearer {_TOKEN}"})
        await state.close()

    assert 'batchyard_service_up{service="redis"} 0.0' in answer.text


async def _has_dead_letters(bus: Bus) -> bool:
    return await bus.depth(DEAD_QUEUE) == 1


@asynccontextmanager
async def _http(
    state: State,
    bus: Bus,
    *,
    token: str | None = _TOKEN,
    patience_seconds: float = 60,
    others: Mapping[str, Callable[[], Awaitable[None]]] | None = None,
) -> AsyncIterator[httpx.AsyncClient]:
    ready, metrics = health.reports(
        state, bus, lambda: True, others=others, patience_seconds=patience_seconds
    )
    async with (
        health.serving(
            "127.0.0.1", 0, ready=ready, metrics=metrics, token=token, patience_seconds=60
        ) as port,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=90) as http,
    ):
        yield http
