"""The whole gateway on its own port, with real servers, and tenants who call it."""

import asyncio
import contextlib
import secrets
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from openai import AsyncOpenAI

from dispatcher.finaliser import Finaliser
from gateway.app import build_app
from gateway.server import Server
from gateway.settings import GatewaySettings
from shared.catalog_file import load_catalog
from shared.doors import Door
from shared.settings import open_storage
from shared.state import State
from shared.storage import Storage
from tests.integration.dispatcher.conftest import CATALOG as YARD_CATALOG
from tests.integration.dispatcher.conftest import BatchYard, a_planner
from tests.live_replica import Replica, a_replica
from tests.servers import S3

CATALOG = """\
pools:
  cpu: {resources: {CPU: 1}}
models:
  tiny:
    pools: [cpu]
    live: {wait_seconds: 1}
    tenant_lora: {max_bytes: 100000}
    media_domains: [127.0.0.1]
    media_limits: {bytes: 1000}
  ears: {pools: [cpu], tasks: [transcription], live: {wait_seconds: 1}}
  meta-llama/Llama-3.1-8B:
    pools: [cpu]
    lora: {my-adapter: ./adapter}
"""


#: The lanes of the models that take live calls, the one of chats first, and their job.
LANE, EARS, JOB = "tiny@cpu", "ears@cpu", "job"
Start = Callable[..., Awaitable[Replica]]


@dataclass(frozen=True)
class Gateway:
    """A running gateway, and what it stands on."""

    url: str
    settings: GatewaySettings


@dataclass(frozen=True)
class Caller:
    """A tenant, with the SDK and with bare HTTP."""

    tenant: str
    key: str
    openai: AsyncOpenAI
    http: httpx.AsyncClient


@pytest.fixture(scope="session")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("catalog") / "catalog.yaml"
    path.write_text(CATALOG)
    return path


@pytest.fixture(scope="session")
def settings(redis_url: str, amqp_url: str, s3: S3, catalog: Path) -> GatewaySettings:
    """Settings of the session's gateway: a Redis database and a bucket that no other test uses."""
    return GatewaySettings.model_validate(
        {
            "amqp_url": amqp_url,
            "redis_url": f"{redis_url.rpartition('/')[0]}/7",
            "s3_endpoint": s3.endpoint,
            "s3_access_key": s3.access_key,
            "s3_secret_key": s3.secret_key,
            "s3_bucket": f"gateway-{secrets.token_hex(4)}",
            "catalog": catalog,
            "completion_windows": ("24h", "7d"),
            "max_upload_bytes": 60_000_000,
            "media_networks": ("127.0.0.0/8",),
            "service_user": urlsplit(amqp_url).username,
        }
    )


@contextlib.contextmanager
def running(settings: GatewaySettings) -> Iterator[Gateway]:
    """The gateway in a thread; it has stopped in order when this ends."""
    server = Server.of(build_app(settings), settings, port=0, timeout_graceful_shutdown=5)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        deadline = time.monotonic() + 60
        while not server.started:
            assert thread.is_alive(), "the gateway did not start"
            assert time.monotonic() < deadline
            time.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield Gateway(f"http://127.0.0.1:{port}", settings)
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture(scope="session")
def gateway(settings: GatewaySettings) -> Iterator[Gateway]:
    with running(settings) as gateway:
        yield gateway


@pytest.fixture
async def gateway_state(gateway: Gateway) -> AsyncIterator[State]:
    """What the gateway wrote, seen from behind."""
    state = State(gateway.settings.redis_url.get_secret_value())
    yield state
    await state.close()


@pytest.fixture
async def bucket(gateway: Gateway) -> AsyncIterator[Storage]:
    """What the gateway stored, seen from behind."""
    storage = open_storage(gateway.settings)
    yield storage
    storage.close()


@contextlib.asynccontextmanager
async def calling(gateway: Gateway, state: State) -> AsyncIterator[Caller]:
    """A new tenant."""
    tenant = f"t{secrets.token_hex(4)}"
    key = await state.keys.create(tenant)
    async with (
        AsyncOpenAI(api_key=key, base_url=f"{gateway.url}/v1", max_retries=0) as openai,
        httpx.AsyncClient(
            base_url=gateway.url, headers={"authorization": f"Bearer {key}"}, timeout=60
        ) as http,
    ):
        yield Caller(tenant, key, openai, http)


@pytest.fixture
async def acme(gateway: Gateway, gateway_state: State) -> AsyncIterator[Caller]:
    async with calling(gateway, gateway_state) as caller:
        yield caller


@pytest.fixture
async def globex(gateway: Gateway, gateway_state: State) -> AsyncIterator[Caller]:
    async with calling(gateway, gateway_state) as caller:
        yield caller


@pytest.fixture
def yard(gateway_state: State, bucket: Storage, tmp_path: Path) -> BatchYard:
    """What runs the gateway's batches without a fleet, in slices of three rows."""
    (tmp_path / "yard.yaml").write_text(YARD_CATALOG)
    planner = a_planner(gateway_state, bucket, load_catalog(tmp_path / "yard.yaml"))
    finaliser = Finaliser(gateway_state, bucket, output_seconds=3600)
    return BatchYard(gateway_state, bucket, planner, finaliser)


@pytest.fixture
async def start(gateway_state: State) -> AsyncIterator[Start]:
    """Starts a replica; its lane's job shows the doors of all that were started."""
    doors: dict[str, list[Door]] = {LANE: [], EARS: []}
    async with contextlib.AsyncExitStack() as stack:
        for lane in doors:
            await gateway_state.lanes.open_job(lane, "", JOB)

        async def begin(name: str, *, shown: bool = True, lane: str = LANE) -> Replica:
            replica = await stack.enter_async_context(a_replica(name))
            if shown:
                doors[lane].append(replica.door)
                await gateway_state.doors.show(lane, JOB, doors[lane])
            return replica

        yield begin
        for lane in doors:
            await gateway_state.doors.show(lane, JOB, [])
            await gateway_state.lanes.open_job(lane, JOB, "")
        # Longer than a gateway uses what it has read.
        await asyncio.sleep(0.6)
