"""The whole fleet on one machine, with a proxy on every link, to be killed and started again."""

import asyncio
import json
import os
import secrets
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from cli.servers import CephS3, Child, Ports, RabbitMQ, Redis, User
from cli.servers.process import make_private_directory, wait_ready
from shared import topology
from shared.state import State
from tests.chaos.journal import Journal
from tests.chaos.plan import DISPATCHERS, GATEWAYS, LANE_JOB, LINKS, Fault

MODELS = ("alpha", "beta")
TENANTS = ("acme", "globex")
SUBSCRIBERS = ("one", "two")
BUCKET = "batchyard"
#: A row takes the engine milliseconds, so leases are short: many of them run out in a short run.
SETTINGS = {
    "BATCHYARD_LEASE_SECONDS": "2",
    "BATCHYARD_CLAIM_SECONDS": "3",
    "BATCHYARD_LANE_JOB_SILENCE_SECONDS": "4",
    "BATCHYARD_LINGER_SECONDS": "2",
    "BATCHYARD_ROWS_PER_SLICE": "16",
    # Lanes that fail for their jobs' deaths would end batches that could be finished.
    "BATCHYARD_LANE_JOB_ATTEMPTS": "100000",
    "BATCHYARD_LANE_ENGINE_DEATHS": "100000",
    "BATCHYARD_REQUESTS_PER_MINUTE": "1000000",
    "BATCHYARD_FILE_REQUESTS_PER_MINUTE": "1000000",
    "BATCHYARD_BATCHES_PER_HOUR": "1000000",
    "BATCHYARD_WEBHOOK_NETWORKS": '["127.0.0.0/8"]',
    "BATCHYARD_WEBHOOK_HTTP": "true",
    "BATCHYARD_GRACE_SECONDS": "2",
    "BATCHYARD_HEARTBEAT_SECONDS": "2",
}
_CATALOG = "pools:\n  cpu: {resources: {CPU: 1}}\nmodels:\n" + "".join(
    f"  {name}: {{pools: [cpu], engine: {{max_num_seqs: 64}}}}\n" for name in MODELS
)
_ROOT = Path(__file__).parents[2]
_POLL_SECONDS = 0.1
_START_SECONDS = 600.0
#: A process that cannot start is not started in a circle.
_RESTART_PAUSE_SECONDS = 0.5


class ChaosFleet:
    """The processes of one run directory. To be used in the main thread's event loop."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        make_private_directory(run_dir)
        self.ports = Ports(run_dir)
        self.faults = Journal(run_dir / "journal" / "faults.jsonl")
        self.crash_log = run_dir / "journal" / "crashes"
        #: Where a process dies that is started now, as BATCHYARD_CRASH_AT has it.
        self.arming: Callable[[str], str] = lambda process: ""
        #: Where those that run will die.
        self.armed: dict[str, set[str]] = {}
        #: Ends that nobody has asked for, by process and exit code.
        self.odd_ends: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        self._service = User("batchyard", secrets.token_urlsafe(16), tenant=False)
        self._users = {name: User(name, secrets.token_urlsafe(16), tenant=True) for name in TENANTS}
        self.redis = Redis(run_dir / "redis", secrets.token_urlsafe(16))
        self.rabbitmq = RabbitMQ(run_dir / "rabbitmq", [self._service, *self._users.values()])
        keys = secrets.token_hex(10).upper(), secrets.token_urlsafe(30)
        self.ceph = CephS3(run_dir / "s3", *keys)
        self._s3_keys = keys
        self.catalog = run_dir / "catalog.yaml"
        self._children: dict[str, Child] = {}
        self._next: dict[str, str] = {}
        self._down: set[str] = set()
        self._watching: asyncio.Task[None] | None = None

    def link(self, client: str, server: str) -> int:
        """The port at which `client` finds `server`."""
        return self.ports.get(f"{client}>{server}")

    def amqp_url(self, tenant: str) -> str:
        """Of a tenant, through the clients' own link."""
        return _through(self.rabbitmq.url(self._users[tenant]), self.link("clients", "rabbitmq"))

    @property
    def service_amqp_url(self) -> str:
        """Of our own processes, past all proxies: for whoever looks at the end."""
        return self.rabbitmq.url(self._service)

    @property
    def s3(self) -> tuple[str, str, str, str]:
        """Endpoint, keys and bucket, past all proxies."""
        return (self.ceph.endpoint, *self._s3_keys, BUCKET)

    def start(self) -> None:
        """Start everything; returns when it serves."""
        began = time.monotonic()
        self.catalog.write_text(_CATALOG)
        for server in (self.rabbitmq, self.redis, self.ceph):
            server.launch()
        self._make_children()
        for name in ("proxy", "cluster", "engine"):
            self._children[name].start()
        for server in (self.redis, self.ceph, self.rabbitmq):
            # A busy machine takes its time.
            server.wait(_START_SECONDS)
        for name in (*GATEWAYS, *DISPATCHERS):
            self._start(name)
        wait_ready(self._is_up, [self._children["proxy"]], timeout_seconds=_START_SECONDS)
        self.counts["seconds to start"] = round(time.monotonic() - began)

    def stop(self) -> None:
        """Stop everything that was started."""
        if self._watching is not None:
            self._watching.cancel()
        for child in self._children.values():
            child.kill()
        for server in (self.rabbitmq, self.redis, self.ceph):
            server.kill()
        self.faults.close()

    def guard(self) -> None:
        """Start again whatever ends, from now on."""
        self._watching = asyncio.get_running_loop().create_task(self._watch())

    async def key(self, tenant: str) -> str:
        """A new API key."""
        state = State(self.redis.url)
        try:
            return await state.keys.create(tenant)
        finally:
            await state.close()

    async def do(self, fault: Fault) -> None:
        """Let it happen, and be over."""
        if fault.kind in ("kill", "freeze") and not self._is_serving(fault.target):
            # Killed again and again while it starts, a broker never comes back.
            self.counts["faults left out"] += 1
            return
        self.faults.note("fault", **fault._asdict())
        self.counts[fault.kind] += 1
        match fault.kind:
            case "kill":
                await self._kill(fault)
            case "freeze":
                await self._freeze(fault.target, fault.seconds)
            case "cut_off":
                await self._cut_off(fault.seconds)
            case "cut":
                await self.order(fault.link_order())
            case _:
                await self.order(fault.link_order())
                await asyncio.sleep(fault.seconds)
                await self.order({"fault": "heal", "link": fault.target})

    async def heal(self) -> None:
        """Nothing is wrong any more, and nothing will be."""
        self.arming = lambda process: ""
        self._next.clear()
        (self.run_dir / "next-crash").unlink(missing_ok=True)
        (self.run_dir / "cut-off").unlink(missing_ok=True)
        await self.order({"fault": "heal", "link": "*"})
        # Those that were armed go on without.
        for name in (*GATEWAYS, *DISPATCHERS):
            self._children[name].kill()
            self._start(name)
        for pid in self._lane_jobs():
            _signal(pid, signal.SIGKILL)

    async def order(self, order: dict[str, Any]) -> None:
        """Tell the proxies."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.ports.get("proxy"))
        writer.write(json.dumps(order).encode() + b"\n")
        await reader.readline()
        writer.close()

    def crashes(self) -> list[str]:
        """Points at which processes have died so far, in order."""
        return self.crash_log.read_text().split() if self.crash_log.exists() else []

    def crash_lane_jobs_at(self, points: str) -> None:
        """Where the next lane job is to die."""
        (self.run_dir / "next-crash").write_text(points)

    def pids(self, name: str) -> list[int]:
        """The processes behind a name."""
        if name == LANE_JOB:
            return self._lane_jobs()
        children = self._server_children(name) or [self._children[name]]
        return [child.pid for child in children if child.is_alive() and child.pid]

    async def _kill(self, fault: Fault) -> None:
        if fault.target == LANE_JOB and fault.point:
            self.crash_lane_jobs_at(f"{fault.point}:{fault.nth}")
        if fault.target == LANE_JOB:
            for pid in self._lane_jobs():
                _signal(pid, signal.SIGKILL)
        elif fault.target == "rabbitmq":
            self.rabbitmq.child.kill()
        elif fault.target == "redis":
            self.redis.kill()
        elif fault.target == "s3":
            self.ceph.kill_gateway()
        elif fault.target == "ceph":
            self.ceph.kill()
        else:
            if fault.point:
                self._next[fault.target] = f"{fault.point}:{fault.nth}"
            self._down.add(fault.target)
            self._children[fault.target].kill()

    async def _freeze(self, target: str, seconds: float) -> None:
        pids = self.pids(target)
        try:
            for pid in pids:
                _signal(pid, signal.SIGSTOP)
            await asyncio.sleep(seconds)
        finally:
            for pid in pids:
                _signal(pid, signal.SIGCONT)

    async def _cut_off(self, seconds: float) -> None:
        """A node that Ray cannot reach: what it stops there goes on, once it wakes."""
        mark = self.run_dir / "cut-off"
        mark.touch()
        try:
            await self._freeze(LANE_JOB, seconds + float(SETTINGS["BATCHYARD_CLAIM_SECONDS"]))
        finally:
            mark.unlink(missing_ok=True)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_POLL_SECONDS)
            for name, child in list(self._children.items()):
                if not child.is_alive():
                    await self._survive(name, partial(self._again, name))
            for name in ("redis", "rabbitmq", "ceph"):
                if any(not child.is_alive() for child in self._server_children(name)):
                    await self._survive(name, partial(self._serve_again, name))

    async def _survive(self, name: str, start: Callable[[], Awaitable[None]]) -> None:
        # A port that is still held, for one: it is tried again.
        try:
            await start()
        except Exception as error:  # noqa: BLE001  # the run goes on, and its end says so
            self.odd_ends[f"{name}: {error}"[:200]] += 1
            await asyncio.sleep(_RESTART_PAUSE_SECONDS)

    async def _again(self, name: str) -> None:
        child = self._children[name]
        # Killed by us, or by itself at a crash point.
        if name not in self._down and child.exit_code != -signal.SIGKILL:
            self.odd_ends[f"{name} ended with {child.exit_code}"] += 1
            await asyncio.sleep(_RESTART_PAUSE_SECONDS)
        elif name not in self._down:
            self.counts["crash points"] += 1
        self._down.discard(name)
        self._start(name)
        self.counts["restarts"] += 1

    async def _serve_again(self, name: str) -> None:
        self.counts["restarts"] += 1
        if name == "rabbitmq":
            self.rabbitmq.launch()
        elif name == "redis":
            self.redis.launch()
        elif all(child.is_alive() for child in self.ceph.children[:2]):
            self.ceph.children[2].start()
        else:
            for child in self.ceph.children:
                if not child.is_alive():
                    child.start()

    def _is_serving(self, name: str) -> bool:
        ports = {
            "redis": _port(self.redis.url),
            "rabbitmq": _port(self.service_amqp_url),
            "s3": _port(self.ceph.endpoint),
            "ceph": _port(self.ceph.endpoint),
        }
        if name not in ports:
            return True
        try:
            socket.create_connection(("127.0.0.1", ports[name]), 0.2).close()
        except OSError:
            return False
        return True

    def _server_children(self, name: str) -> list[Child]:
        match name:
            case "redis":
                return [self.redis.child]
            case "rabbitmq":
                return [self.rabbitmq.child]
            case "s3":
                return [self.ceph.children[2]]
            case "ceph":
                return list(self.ceph.children)
            case _:
                return []

    def _start(self, name: str) -> None:
        points = self._next.pop(name, "") or self.arming(name)
        self.armed[name] = {point.partition(":")[0] for point in points.split(",")}
        self._children[name] = self._children[name].with_environment({"BATCHYARD_CRASH_AT": points})
        self._children[name].start()

    def _lane_jobs(self) -> list[int]:
        try:
            running: dict[str, int] = json.loads((self.run_dir / "jobs.json").read_text())
        except FileNotFoundError:
            return []
        return list(running.values())

    def _make_children(self) -> None:
        python = [sys.executable, "-m"]
        targets = {name: self.ports.get(name) for name in (*GATEWAYS, "cluster", "engine")}
        targets |= {
            "redis": _port(self.redis.url),
            "rabbitmq": _port(self.service_amqp_url),
            "s3": _port(self.ceph.endpoint),
        }
        links = {
            f"{client}>{server}": (self.link(client, server), targets[server])
            for client, servers in LINKS.items()
            for server in servers
        }
        proxy = [str(self.ports.get("proxy")), json.dumps(links)]
        self._child("proxy", [*python, "tests.chaos.proxy", *proxy], {})
        engine = [str(targets["engine"]), str(self.run_dir / "journal" / "engine.jsonl")]
        self._child("engine", [*python, "tests.chaos.engine", *engine], {})
        cluster = [str(targets["cluster"]), str(self.run_dir)]
        self._child(
            "cluster",
            [*python, "tests.chaos.cluster", *cluster],
            {
                **self._environment(LANE_JOB),
                "CHAOS_ENGINE_PORT": str(self.link(LANE_JOB, "engine")),
            },
        )
        for name in GATEWAYS:
            environment = {**self._environment(name), "BATCHYARD_PORT": str(targets[name])}
            self._child(name, [*python, "gateway"], environment)
        for name in DISPATCHERS:
            environment = {
                **self._environment(name),
                "BATCHYARD_RAY_ADDRESS": f"http://127.0.0.1:{self.link(name, 'cluster')}",
                "BATCHYARD_RAY_TOKEN": "token",
            }
            self._child(name, [*python, "dispatcher"], environment)

    def _child(self, name: str, command: list[str], environment: dict[str, str]) -> None:
        inherited = {key: text for key, text in os.environ.items() if "BATCHYARD" not in key}
        # The rooms are found from the root of the tree, wherever the run was begun.
        inherited["PYTHONPATH"] = str(_ROOT)
        self._children[name] = Child(
            name, command, self.run_dir, environment={**inherited, **environment}
        )

    def _environment(self, client: str) -> dict[str, str]:
        amqp = "rabbitmq" if "rabbitmq" in LINKS[client] else None
        return {
            **SETTINGS,
            "BATCHYARD_AMQP_URL": _through(
                self.service_amqp_url, self.link(client, amqp) if amqp else 1
            ),
            "BATCHYARD_REDIS_URL": _through(self.redis.url, self.link(client, "redis")),
            "BATCHYARD_S3_ENDPOINT": _through(self.ceph.endpoint, self.link(client, "s3")),
            "BATCHYARD_S3_ACCESS_KEY": self._s3_keys[0],
            "BATCHYARD_S3_SECRET_KEY": self._s3_keys[1],
            "BATCHYARD_S3_BUCKET": BUCKET,
            "BATCHYARD_CATALOG": str(self.catalog),
            "BATCHYARD_SERVICE_USER": self._service.name,
            "BATCHYARD_CRASH_LOG": str(self.crash_log),
        }

    def _is_up(self) -> bool:
        if not all("dispatcher.ready" in self._log(name) for name in DISPATCHERS):
            return False
        with suppress(httpx.HTTPError):
            return all(
                httpx.get(f"http://127.0.0.1:{self.ports.get(name)}/readyz", timeout=5).is_success
                for name in GATEWAYS
            )
        return False

    def _log(self, name: str) -> str:
        return self._children[name].log_file.read_text(errors="replace")

    def are_queues_registered(self) -> bool:
        """Whether RabbitMQ would know its queues after a kill.

        3.10 has a new quorum queue in its registry on disk only three seconds after it exists.
        """
        registries = [path.read_bytes() for path in self.run_dir.rglob("names.dets")]
        queues = [*topology.QUEUE_ARGUMENTS, *(queue for _, queue in subscriptions())]
        return not registries or all(
            any(name.encode() in registry for registry in registries) for name in queues
        )


def subscriptions() -> list[tuple[str, str]]:
    """Tenant and queue of every subscriber."""
    return [(tenant, f"sub.{tenant}.{name}") for tenant in TENANTS for name in SUBSCRIBERS]


def _signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _port(url: str) -> int:
    return int(url.rpartition(":")[2].partition("/")[0])


def _through(url: str, port: int) -> str:
    """The URL with another port."""
    head, _, tail = url.rpartition(":")
    _, slash, path = tail.partition("/")
    return f"{head}:{port}{slash}{path}"
