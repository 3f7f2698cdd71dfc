"""Starts the fleet's processes in order, watches them, and stops them."""

import asyncio
import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from cli.fleet.catalog import (
    CATALOG_FILE,
    CHAT_MODEL,
    EMBED_MODEL,
    make_catalog,
    require_models,
)
from cli.fleet.catalog_check import CatalogCheck
from cli.fleet.checks import listens, require_free, require_memory
from cli.fleet.credentials import TENANT, Credentials, read_credentials
from cli.fleet.environments import node_environment, service_environment, write_lane_secrets
from cli.fleet.ray import RayNode
from cli.fleet.servers import Addresses, OwnServers, Servers, service_user
from cli.s3_logins.bucket import apply_own_policy
from cli.servers import Child, Ports
from cli.servers.http import is_well
from cli.servers.process import (
    all_in_turn,
    make_private_directory,
    stop_together,
    wait_ready,
)
from cli.trail import TRAIL_FILE, told
from shared import ids
from shared.catalog import Catalog
from shared.catalog_file import load_catalog
from shared.ledger.keys import add_key
from shared.settings import DEFAULT_TENANT_PREFIX, SharedSettings
from shared.state import State
from shared.storage import DEFAULT_REGION, Storage

#: The pause before a process that died is started again.
_RESTART_PAUSE_SECONDS = 2.0
_HEALTH_PORT = "BATCHYARD_HEALTH_PORT"

#: Whatever the environment says for another server; `batchyard s3-logins` relies on the tags.
_OWN_S3_SETTINGS = {"BATCHYARD_S3_REGION": DEFAULT_REGION, "BATCHYARD_TAG_RESULTS": "true"}

Report = Callable[[str], None]


@dataclass(frozen=True)
class Options:
    """What `batchyard up` was asked for."""

    run_dir: Path
    own: OwnServers = field(default_factory=OwnServers)
    catalog: Path | None = None
    models: tuple[str, ...] = ()
    port: int | None = None
    #: How many processes of each there are. Gateways share the port; of dispatchers one leads.
    gateways: int = 1
    dispatchers: int = 1
    #: Further settings for the fleet's processes, as environment variables.
    settings: Mapping[str, str] | None = None


def _own_port(environment: Mapping[str, str], number: int) -> dict[str, str]:
    """The port of the health of one of several dispatchers: those behind the first's."""
    port = environment.get(_HEALTH_PORT, "")
    return {_HEALTH_PORT: str(int(port) + number)} if port.isdecimal() and int(port) else {}


class Fleet:
    """The processes of one run directory."""

    def __init__(self, options: Options, *, report: Report) -> None:
        self._options = options
        self._report = report
        self.run_dir = options.run_dir
        make_private_directory(self.run_dir)
        self.credentials: Credentials = read_credentials(self.run_dir)
        self._ports = Ports(self.run_dir)
        self.servers = Servers(self.run_dir, options.own, self.credentials)
        self.addresses: Addresses = self.servers.addresses
        self.port = options.port or self._ports.get("gateway")
        self.catalog: Catalog
        self.ray: RayNode
        self.gateways: list[Child] = []
        self.dispatchers: list[Child] = []

    @property
    def gateway(self) -> Child:
        """The first one."""
        return self.gateways[0]

    @property
    def dispatcher(self) -> Child:
        """The first one."""
        return self.dispatchers[0]

    @property
    def base_url(self) -> str:
        """The base URL for OpenAI clients."""
        return f"http://127.0.0.1:{self.port}/v1"

    def start(self) -> None:
        """Start everything; raises SetupError that says what is missing and what to do."""
        # Errors in the options are reported before anything runs.
        require_models(self._options.models)
        if self._options.catalog is not None:
            self.catalog = load_catalog(self._options.catalog)
        require_memory()
        if self._options.port is None:
            self._ports.require_free("gateway")
        else:
            require_free(self._options.port)
        if packages := self.servers.install():
            self._report(f"installed  {' '.join(packages)}")
        for server in self.servers.shared_logins(self._options.own):
            self._report(
                f"warning    lane jobs have the login of gateway and dispatcher at your {server}: "
                "docs/operations.md says how to give them one of their own"
            )
        began = time.monotonic()
        self.servers.launch()
        path = self._options.catalog or self.run_dir / CATALOG_FILE
        environment = self._environment(path.resolve())
        write_lane_secrets(self.run_dir, self.addresses, self.credentials)
        of_node = node_environment(environment, self.run_dir)
        self.ray = RayNode(self.run_dir, self.credentials.ray_token, of_node)
        self.ray.launch()
        check = None
        if self._options.catalog is not None:
            check = CatalogCheck(self.run_dir, path, of_node)
            check.start()
        else:
            # While the servers start: its first model takes seconds to make. A test has checked
            # what we write against vLLM's arguments.
            make_catalog(self.run_dir, list(self._options.models))
            self.catalog = load_catalog(path)
        for model in self.catalog.trusting():
            self._report(f"warning    the engine of {model} runs code from its weights")
        self.servers.wait()
        self._say_up("servers", began)
        asyncio.run(self._add_first_key(environment))
        self._processes(environment)
        for gateway in self.gateways:
            gateway.start()
        self.ray.wait()
        self._say_up("ray", began)
        for dispatcher in self.dispatchers:
            dispatcher.start()
        if check is not None:
            check.wait()
        wait_ready(self._is_ready, [*self.gateways, *self.dispatchers], timeout_seconds=120)
        self._say_up("gateway, dispatcher", began)

    def children(self) -> list[Child]:
        """Every process of the fleet, the servers first."""
        return [
            *self.servers.children(),
            self.ray.child,
            *self.dispatchers,
            *self.gateways,
        ]

    def watch(self) -> None:
        """Restart whatever dies; ends only by an exception."""
        while True:
            time.sleep(0.5)
            for child in self.children():
                child.bound_log()
                if child.is_alive():
                    continue
                self._report(f"restarted  {child.name}: it ended with {child.exit_code}")
                time.sleep(_RESTART_PAUSE_SECONDS)
                if child is self.ray.child:
                    self.ray.stop()
                    self.ray.launch()
                else:
                    child.start()

    def stop(self) -> None:
        """Stop everything that was started, in reverse order."""
        ours = (*self.gateways, *self.dispatchers)
        steps: list[Callable[[], object]] = [partial(stop_together, ours, 10)]
        if (ray := getattr(self, "ray", None)) is not None:
            steps.append(ray.stop)
        all_in_turn([*steps, self.servers.stop])

    def client_environment(self) -> dict[str, str]:
        """The variables that scripts need to use the fleet."""
        served = self.catalog.served_names()
        return {
            "OPENAI_BASE_URL": self.base_url,
            "OPENAI_API_KEY": self.credentials.api_key,
            "BATCHYARD_AMQP_URL": self.addresses.tenant_amqp_url,
            "CHAT_MODEL": first_serving(self.catalog, "/v1/chat/completions", CHAT_MODEL),
            "EMBED_MODEL": first_serving(self.catalog, "/v1/embeddings", EMBED_MODEL),
            "BATCHYARD_MODELS": " ".join(served),
        }

    def _environment(self, catalog: Path) -> dict[str, str]:
        return {
            **service_environment(os.environ),
            "BATCHYARD_AMQP_URL": self.addresses.amqp_url,
            "BATCHYARD_REDIS_URL": self.addresses.redis_url,
            "BATCHYARD_S3_ENDPOINT": self.addresses.s3_endpoint,
            "BATCHYARD_S3_ACCESS_KEY": self.addresses.s3_access_key,
            "BATCHYARD_S3_SECRET_KEY": self.addresses.s3_secret_key,
            **(_OWN_S3_SETTINGS if self.servers.ceph else {}),
            "BATCHYARD_CATALOG": str(catalog),
            "BATCHYARD_TRAIL_FILE": os.environ.get(
                "BATCHYARD_TRAIL_FILE", str((self.run_dir / TRAIL_FILE).resolve())
            ),
            **(self._options.settings or {}),
        }

    def _processes(self, environment: dict[str, str]) -> None:
        user = {"BATCHYARD_SERVICE_USER": service_user(self.addresses)}
        of_dispatchers = {
            "BATCHYARD_RAY_ADDRESS": self.ray.address,
            "BATCHYARD_RAY_TOKEN": self.credentials.ray_token,
        }
        of_gateways = {
            "BATCHYARD_PORT": str(self.port),
            "BATCHYARD_CACHE_SECRET": self.credentials.cache_secret,
        }
        self.dispatchers = self._alike(
            "dispatcher", self._options.dispatchers, {**environment, **user, **of_dispatchers}
        )
        if self._options.gateways > 1:
            of_gateways["BATCHYARD_SHARE_PORT"] = "true"
        self.gateways = self._alike(
            "gateway", self._options.gateways, {**environment, **user, **of_gateways}
        )

    def _alike(self, name: str, count: int, environment: Mapping[str, str]) -> list[Child]:
        """Processes of one kind; all but the first have a number in their name."""
        command = [sys.executable, "-m", name]
        return [
            Child(
                name if number == 0 else f"{name}-{number + 1}",
                command,
                self.run_dir,
                environment={**environment, **_own_port(environment, number)},
            )
            for number in range(count)
        ]

    async def _add_first_key(self, environment: Mapping[str, str]) -> None:
        state = State(self.addresses.redis_url)
        addresses = self.addresses
        bucket, region = (
            environment.get(f"BATCHYARD_{name.upper()}", SharedSettings.model_fields[name].default)
            for name in ("s3_bucket", "s3_region")
        )
        storage = Storage(
            addresses.s3_endpoint,
            addresses.s3_access_key,
            addresses.s3_secret_key,
            bucket,
            region=region,
        )
        await storage.prepare()
        if self.servers.ceph is not None:
            prefix = environment.get("BATCHYARD_TENANT_PREFIX", DEFAULT_TENANT_PREFIX)
            await apply_own_policy(self.servers.ceph, storage, prefix)
        key = self.credentials.api_key
        key_id = ids.api_key_id(ids.api_key_digest(key))
        is_known = key_id in {record.id for record in await state.keys.all(TENANT)}
        telling = told(self.run_dir, "key.created", tenant=TENANT, about=key_id)
        with nullcontext() if is_known else telling:
            await add_key(state, storage, TENANT, key, name="batchyard up")
        storage.close()
        await state.close()

    def _is_ready(self) -> bool:
        # Of several gateways at one port, any may answer, and only those that listen.
        if not all(one.pid and listens(one.pid, self.port) for one in self.gateways):
            return False
        return is_well(f"http://127.0.0.1:{self.port}/readyz")

    def _say_up(self, what: str, began: float) -> None:
        self._report(f"up         {what} ({time.monotonic() - began:.1f} s)")


def first_serving(catalog: Catalog, endpoint: str, preferred: str = "") -> str:
    """A model that serves this endpoint; empty if there is none."""
    serving = [name for name in catalog.served_names() if endpoint in catalog.model(name).endpoints]
    if preferred in serving:
        return preferred
    return serving[0] if serving else ""
