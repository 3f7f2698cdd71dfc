"""Gateway and dispatcher on private servers, without Ray, for benchmarks that need no engine."""

import asyncio
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cli.fleet.credentials import Credentials, read_credentials
from cli.fleet.servers import OwnServers, Servers, service_user
from cli.servers.http import is_well
from cli.servers.ports import Ports
from cli.servers.process import Child, wait_ready
from shared.state import State

_GIBIBYTE = 1024**3


@dataclass(frozen=True)
class BenchYard:
    """The service's address, its API key, and its processes by name."""

    address: str
    api_key: str
    redis_url: str
    amqp_url: str
    tenant_amqp_url: str
    pids: dict[str, int]
    #: What its processes find in their environment.
    environment: dict[str, str]


@contextmanager
def running_yard(
    folder: Path, names: Sequence[str], *, model: str, changes: Mapping[str, str] | None = None
) -> Iterator[BenchYard]:
    """Run the named processes with a catalog of this one model, and stop them afterwards.

    `changes` are more variables of their environment.
    """
    credentials = read_credentials(folder)
    servers = Servers(folder, OwnServers(), credentials)
    processes: dict[str, Child] = {}
    try:
        servers.launch()
        servers.wait()
        catalog = folder / "catalog.yaml"
        catalog.write_text(
            f"pools:\n  none: {{resources: {{CPU: 1}}}}\nmodels:\n  {model}: {{pools: [none]}}\n"
        )
        port = Ports(folder).get("gateway")
        environment = {**_environment(servers, catalog, port), **(changes or {})}
        for name in names:
            command = [sys.executable, "-m", name]
            processes[name] = Child(name, command, folder, environment=environment)
            processes[name].start()
        address = f"http://127.0.0.1:{port}"
        wait_ready(
            lambda: is_well(f"{address}/readyz"), list(processes.values()), timeout_seconds=60
        )
        where = servers.addresses
        asyncio.run(_let_in(where.redis_url, credentials))
        pids = {name: child.pid for name, child in processes.items() if child.pid is not None}
        yield BenchYard(
            address,
            credentials.api_key,
            where.redis_url,
            where.amqp_url,
            where.tenant_amqp_url,
            pids,
            environment,
        )
    finally:
        for child in processes.values():
            child.stop()
        servers.stop()


def _environment(servers: Servers, catalog: Path, port: int) -> dict[str, str]:
    where = servers.addresses
    return {
        **os.environ,
        "BATCHYARD_AMQP_URL": where.amqp_url,
        "BATCHYARD_REDIS_URL": where.redis_url,
        "BATCHYARD_S3_ENDPOINT": where.s3_endpoint,
        "BATCHYARD_S3_ACCESS_KEY": where.s3_access_key,
        "BATCHYARD_S3_SECRET_KEY": where.s3_secret_key,
        "BATCHYARD_CATALOG": str(catalog),
        "BATCHYARD_SERVICE_USER": service_user(where),
        "BATCHYARD_PORT": str(port),
        "BATCHYARD_MAX_ROWS_PER_BATCH": "1000000",
        "BATCHYARD_MAX_UPLOAD_BYTES": str(4 * _GIBIBYTE),
        "BATCHYARD_MAX_INPUT_BYTES": str(4 * _GIBIBYTE),
        "BATCHYARD_REQUESTS_PER_MINUTE": "100000000",
        "BATCHYARD_BATCHES_PER_HOUR": "100000000",
        "BATCHYARD_MAX_ENQUEUED_REQUESTS": "100000000",
        # Nothing answers there, and nothing needs to.
        "BATCHYARD_RAY_ADDRESS": "http://127.0.0.1:9",
        "BATCHYARD_RAY_TOKEN": "none",
    }


async def _let_in(redis_url: str, credentials: Credentials) -> None:
    state = State(redis_url)
    await state.keys.add("bench", credentials.api_key)
    await state.close()
