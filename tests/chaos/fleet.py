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
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from subprocess import TimeoutExpired
from typing import Any
from urllib.parse import urlsplit

from cli.servers import CephS3, Child, Ports, RabbitMQ, Redis, User
from cli.servers.http import is_well
from cli.servers.process import RUN_DIR_VARIABLE, make_private_directory, wait_ready
from shared.bus import topology
from shared.errors import SetupError
from shared.state import State
from tests.chaos.forked import Forked, Room, forks
from tests.chaos.journal import Journal
from tests.chaos.plan import DISPATCHERS, GATEWAYS, LANE_JOB, RAY_TARGETS, STUB, Fault
from tests.eventually import eventually
from tests.on_disk import are_bound, are_registered
from tests.servers import UNBOUNDED

TENANTS = ("acme", "globex")
#: The tenant who is judged by what the documents say, in a process of its own.
OUTSIDER = "outsider"
SUBSCRIBERS = ("one", "two")
#: Replies are not waited for so long that a run could end before them.
REPLY_QUEUE_ARGUMENTS: Mapping[str, str | int] = {"x-queue-type": "quorum", "x-expires": 86_400_000}
BUCKET = "batchyard"
#: A row takes the engine milliseconds, so leases are short: many of them run out in a short run.
SETTINGS = {
    "BATCHYARD_LEASE_SECONDS": "2",
    "BATCHYARD_CLAIM_SECONDS": "3",
    "BATCHYARD_LANE_JOB_SILENCE_SECONDS": "4",
    "BATCHYARD_LINGER_SECONDS": "2",
    "BATCHYARD_ROWS_PER_SLICE": "16",
    # Lanes that fail because their jobs died would end batches that could be finished.
    "BATCHYARD_LANE_JOB_ATTEMPTS": "100000",
    "BATCHYARD_LANE_ENGINE_DEATHS": "100000",
    "BATCHYARD_REQUESTS_PER_MINUTE": "1000000",
    "BATCHYARD_FILE_REQUESTS_PER_MINUTE": "1000000",
    "BATCHYARD_BATCHES_PER_HOUR": "1000000",
    "BATCHYARD_WEBHOOK_NETWORKS": '["127.0.0.0/8"]',
    "BATCHYARD_WEBHOOK_HTTP": "true",
    "BATCHYARD_GRACE_SECONDS": "2",
    "BATCHYARD_HEARTBEAT_SECONDS": "2",
    # Batches leave Redis during a run.
    "BATCHYARD_ENDED_SECONDS": "60",
}
RAY_TOKEN = "token"
_ROOT = Path(__file__).parents[2]
_PYTHON = (sys.executable, "-m")
_POLL_SECONDS = 0.1
#: Of the simulated engine, as by default: no fault lasts as long.
_HANG_SECONDS = 600
_START_SECONDS = 600.0
_STOP_SECONDS = 60.0
#: The pause before a process that cannot start is started again.
_RESTART_PAUSE_SECONDS = 0.5


class ChaosFleet:
    """The processes of one run directory. To be used in the main thread's event loop."""

    aims = STUB
    models: Sequence[str] = ("alpha", "beta")
    settings: Mapping[str, str] = SETTINGS
    servers: Sequence[str] = ("redis", "rabbitmq", "ceph")
    #: Whether live calls are made: their answers are known beforehand.
    has_live_calls = True
    #: Whether there are rows that kill its engine.
    has_deadly_rows = True
    #: A run in which nothing moves for so long is over, whatever is still open: longer than the
    #: pause after a webhook's second attempt.
    stall_seconds = 400.0

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        make_private_directory(run_dir)
        self.ports = Ports(run_dir)
        # Nobody else takes ports at this address while their process is dead.
        self.host = f"127.{1 + secrets.randbelow(254)}.{1 + secrets.randbelow(254)}.1"
        self.faults = Journal(run_dir / "journal" / "faults.jsonl")
        self.crash_log = run_dir / "journal" / "crashes"
        #: Where a process that is started now will die, as a value of BATCHYARD_CRASH_AT.
        self.arming: Callable[[str], str] = lambda process: ""
        #: Where those that run will die, and the how many-th time that they come by.
        self.armed: dict[str, dict[str, int]] = {}
        #: Unexpected ends of processes, by process and exit code.
        self.odd_ends: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        #: How often each fault hit each process or link.
        self.hit: Counter[str] = Counter()
        self._service = User("batchyard", secrets.token_urlsafe(16), tenant=False)
        self._users = {
            name: User(name, secrets.token_urlsafe(16), tenant=True, bounds=UNBOUNDED)
            for name in TENANTS
        }
        self._users[OUTSIDER] = User(OUTSIDER, secrets.token_urlsafe(16), tenant=True)
        self.redis = Redis(run_dir / "redis", secrets.token_urlsafe(16), secrets.token_urlsafe(16))
        self.rabbitmq = RabbitMQ(run_dir / "rabbitmq", [self._service, *self._users.values()])
        keys = secrets.token_hex(10).upper(), secrets.token_urlsafe(30)
        self.ceph = CephS3(run_dir / "s3", *keys)
        self._s3_keys = keys
        self.catalog = run_dir / "catalog.yaml"
        self._children: dict[str, Child | Forked] = {}
        self._forks = forks()
        self._next: dict[str, str] = {}
        self._down: set[str] = set()
        self._watching: asyncio.Task[None] | None = None

    def link(self, client: str, server: str) -> int:
        """The port at which `client` finds `server`."""
        return self.ports.get(f"{client}>{server}")

    def url(self, port: int) -> str:
        """Of a port of the run's own address."""
        return f"http://{self.host}:{port}"

    def amqp_url(self, tenant: str) -> str:
        """Of a tenant, through the clients' own link."""
        url = self.rabbitmq.url(self._users[tenant])
        return self._through(url, self.link("clients", "rabbitmq"))

    @property
    def service_amqp_url(self) -> str:
        """The address for our own processes, past all proxies, for the checks at the end."""
        return self.rabbitmq.url(self._service)

    @property
    def service_user(self) -> str:
        """The broker's name for our own processes."""
        return self._service.name

    @property
    def s3(self) -> tuple[str, str, str, str]:
        """Endpoint, keys and bucket, past all proxies."""
        return (self.ceph.endpoint, *self._s3_keys, BUCKET)

    def start(self) -> None:
        """Start everything; returns when it serves."""
        began = time.monotonic()
        self.write_catalog()
        for server in (self.rabbitmq, self.redis, self.ceph):
            server.launch()
        self._make_children()
        self._proxy.start()
        self.launch_ray()
        for server in (self.redis, self.ceph, self.rabbitmq):
            # This may take long on a busy machine.
            server.wait(_START_SECONDS)
        for name in (*GATEWAYS, *DISPATCHERS):
            self._start(name)
        wait_ready(self._is_up, [self._proxy], timeout_seconds=_START_SECONDS)
        self.counts["seconds to start"] = round(time.monotonic() - began)

    def write_catalog(self) -> None:
        """The names of the models."""
        models = "".join(
            f"  {name}: {{pools: [cpu], engine: {{max_num_seqs: 64}}, live: {{}}}}\n"
            for name in self.models
        )
        self.catalog.write_text(f"pools:\n  cpu: {{resources: {{CPU: 1}}}}\nmodels:\n{models}")

    def launch_ray(self) -> None:
        """Start the substitute for Ray: a head that runs lane jobs, and an engine for them."""
        journal = self.run_dir / "journal" / "engine.jsonl"
        ports = [str(self.ports.get(name)) for name in ("engine", "door")]
        engine = [self.host, ports[0], str(journal), str(_HANG_SECONDS), ports[1]]
        self._child("engine", [*_PYTHON, "tests.chaos.engine", *engine], {})
        cluster = [*map(str, self.ray_address), str(self.run_dir)]
        self._child(
            "cluster",
            [*_PYTHON, "tests.chaos.cluster", *cluster],
            {
                **self.environment(LANE_JOB),
                "CHAOS_ENGINE_HOST": self.host,
                "CHAOS_ENGINE_PORT": str(self.link(LANE_JOB, "engine")),
            },
        )
        for name in ("cluster", "engine"):
            self._children[name].start()

    @property
    def ray_address(self) -> tuple[str, int]:
        """Where Ray's API for jobs answers."""
        return self.host, self.ports.get("cluster")

    def stop(self) -> None:
        """Stop everything that was started."""
        if self._watching is not None:
            self._watching.cancel()
        for child in self._children.values():
            child.kill()
        for server in (self.rabbitmq, self.redis, self.ceph):
            server.kill()
        self.faults.close()

    async def stop_dispatchers(self) -> None:
        """End the dispatchers in an orderly way, and start nothing again."""
        await self.stop_guarding()
        for name in DISPATCHERS:
            for pid in self.pids(name):
                _signal(pid, signal.SIGTERM)
        await eventually(lambda: not any(map(self.pids, DISPATCHERS)), _STOP_SECONDS)

    def guard(self) -> None:
        """Start again whatever ends, from now on."""
        self._watching = asyncio.get_running_loop().create_task(self._watch())

    async def stop_guarding(self) -> None:
        """Start nothing again."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)

    async def key(self, tenant: str) -> str:
        """A new API key."""
        state = State(self.redis.url)
        try:
            return await state.keys.create(tenant)
        finally:
            await state.close()

    async def do(self, fault: Fault) -> None:
        """Inflict the fault and end it. A fault that a busy machine cannot do is left out."""
        try:
            await self._do(fault)
        except (OSError, SetupError, TimeoutExpired) as error:
            self.odd_ends[f"{fault.kind} {fault.target}: {error}"[:200]] += 1

    async def _do(self, fault: Fault) -> None:
        is_of_process = fault.kind in ("kill", "freeze", "cut_off")
        # A broker that is killed again and again while it starts never comes back.
        if is_of_process and not (self._is_serving(fault.target) and self.pids(fault.target)):
            self.counts["faults left out"] += 1
            return
        self.faults.note("fault", **fault._asdict())
        self.counts[fault.kind] += 1
        self.hit[f"{fault.kind} {fault.target}"] += 1
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
        """End all faults, and begin no more."""
        self.arming = lambda process: ""
        self._next.clear()
        (self.run_dir / "next-crash").unlink(missing_ok=True)
        (self.run_dir / "cut-off").unlink(missing_ok=True)
        await self.order({"fault": "heal", "link": "*"})
        # Those that were armed go on without.
        for name in (*GATEWAYS, *DISPATCHERS):
            self._children[name].kill()
            self._start(name)
        for pid in self.lane_jobs():
            _signal(pid, signal.SIGKILL)

    async def order(self, order: dict[str, Any]) -> None:
        """Send the fault to the proxies."""
        reader, writer = await asyncio.open_connection(self.host, self.ports.get("proxy"))
        writer.write(json.dumps(order).encode() + b"\n")
        await reader.readline()
        writer.close()

    @property
    def kills(self) -> int:
        """SIGKILLs so far, from outside and at points."""
        return self.counts["kill"] + len(self.crashes())

    def crashes(self) -> list[str]:
        """Points at which processes have died so far, in order."""
        return self.crash_log.read_text().split() if self.crash_log.exists() else []

    def crash_lane_jobs_at(self, points: str) -> None:
        """Where the next lane job is to die."""
        (self.run_dir / "next-crash").write_text(points)

    def pids(self, name: str) -> list[int]:
        """The processes behind a name."""
        if name == LANE_JOB:
            return self.lane_jobs()
        children: Sequence[Child | Forked] = self.server_children(name) or [self._children[name]]
        return [child.pid for child in children if child.is_alive() and child.pid]

    async def _kill(self, fault: Fault) -> None:
        if fault.target == LANE_JOB and fault.point:
            self.crash_lane_jobs_at(f"{fault.point}:{fault.nth}")
        if fault.target in RAY_TARGETS:
            for pid in self.pids(fault.target):
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
            await self._freeze(LANE_JOB, seconds + float(self.settings["BATCHYARD_CLAIM_SECONDS"]))
        finally:
            mark.unlink(missing_ok=True)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_POLL_SECONDS)
            for name, child in list(self._children.items()):
                if not child.is_alive():
                    await self._survive(name, partial(self._again, name))
            for name in self.servers:
                if any(not child.is_alive() for child in self.server_children(name)):
                    await self._survive(name, partial(self.serve_again, name))

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

    async def serve_again(self, name: str) -> None:
        """Start what is dead of one of `servers`."""
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

    def server_children(self, name: str) -> list[Child]:
        """The processes of one of `servers`, or of the S3 gateway alone; none for others."""
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
        named = (point.partition(":") for point in points.split(",") if point)
        self.armed[name] = {point: int(nth or 1) for point, _, nth in named}
        self._children[name] = self._children[name].with_environment({"BATCHYARD_CRASH_AT": points})
        self._children[name].start()

    def lane_jobs(self) -> list[int]:
        """The processes of the lane jobs that run."""
        try:
            running: dict[str, int] = json.loads((self.run_dir / "jobs.json").read_text())
        except FileNotFoundError:
            return []
        # A dead head's list is an old one, and its numbers may be others' by now.
        return [pid for pid in running.values() if self._is_ours(pid)]

    def _is_ours(self, pid: int) -> bool:
        mark = f"{RUN_DIR_VARIABLE}={self.run_dir.resolve()}".encode()
        try:
            return mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            return False

    def _make_children(self) -> None:
        targets = {name: (self.host, self.ports.get(name)) for name in (*GATEWAYS, "engine")}
        targets |= {
            "cluster": self.ray_address,
            "redis": ("127.0.0.1", _port(self.redis.url)),
            "rabbitmq": ("127.0.0.1", _port(self.service_amqp_url)),
            "s3": ("127.0.0.1", _port(self.ceph.endpoint)),
        }
        links = {
            f"{client}>{server}": (self.link(client, server), targets[server])
            for client, servers in self.aims.links.items()
            for server in servers
        }
        proxy = [self.host, str(self.ports.get("proxy")), json.dumps(links)]
        self._proxy = self._child("proxy", [*_PYTHON, "tests.chaos.proxy", *proxy], {})
        for name in GATEWAYS:
            environment = {
                **self.environment(name),
                "BATCHYARD_HOST": self.host,
                "BATCHYARD_PORT": str(self.ports.get(name)),
            }
            self._fork(name, "gateway", environment)
        for name in DISPATCHERS:
            environment = {
                **self.environment(name),
                "BATCHYARD_RAY_ADDRESS": self.url(self.link(name, "cluster")),
                "BATCHYARD_RAY_TOKEN": RAY_TOKEN,
            }
            self._fork(name, "dispatcher", environment)

    def _fork(self, name: str, room: Room, environment: dict[str, str]) -> None:
        self._children[name] = Forked(
            self._forks, name, room, self.run_dir, {**_inherited(), **environment}
        )

    def _child(self, name: str, command: list[str], environment: dict[str, str]) -> Child:
        child = Child(name, command, self.run_dir, environment={**_inherited(), **environment})
        self._children[name] = child
        return child

    def whole_environment(self, client: str) -> dict[str, str]:
        """`environment`, with what every process needs."""
        return {**_inherited(), **self.environment(client)}

    def environment(self, client: str) -> dict[str, str]:
        """The environment of a process that reaches the others through the links of `client`."""
        amqp = "rabbitmq" if "rabbitmq" in self.aims.links[client] else None
        redis_url = self.redis.lane_url if client == LANE_JOB else self.redis.url
        return {
            **self.settings,
            "BATCHYARD_AMQP_URL": self._through(
                self.service_amqp_url, self.link(client, amqp) if amqp else 1
            ),
            "BATCHYARD_REDIS_URL": self._through(redis_url, self.link(client, "redis")),
            "BATCHYARD_S3_ENDPOINT": self._through(self.ceph.endpoint, self.link(client, "s3")),
            "BATCHYARD_S3_ACCESS_KEY": self._s3_keys[0],
            "BATCHYARD_S3_SECRET_KEY": self._s3_keys[1],
            "BATCHYARD_S3_BUCKET": BUCKET,
            "BATCHYARD_CATALOG": str(self.catalog),
            "BATCHYARD_SERVICE_USER": self.service_user,
            "BATCHYARD_CRASH_LOG": str(self.crash_log),
        }

    def _through(self, url: str, port: int) -> str:
        """The same URL through a link."""
        parts = urlsplit(url)
        login, at, _ = parts.netloc.rpartition("@")
        return parts._replace(netloc=f"{login}{at}{self.host}:{port}").geturl()

    def _is_up(self) -> bool:
        if not all("dispatcher.ready" in self._log(name) for name in DISPATCHERS):
            return False
        return all(is_well(f"{self.url(self.ports.get(name))}/readyz") for name in GATEWAYS)

    def _log(self, name: str) -> str:
        return self._children[name].log_file.read_text(errors="replace")

    def are_queues_registered(self) -> bool:
        """Whether RabbitMQ would know its queues and event bindings after a kill."""
        outsiders = f"sub.{OUTSIDER}.main"
        bound = [*topology.REQUIRED_QUEUES, *(queue for _, queue in subscriptions()), outsiders]
        replied = [queue for _, queue in reply_queues()]
        return are_registered(self.run_dir, *bound, *replied) and are_bound(self.run_dir, *bound)


def subscriptions() -> list[tuple[str, str]]:
    """Tenant and queue of every subscriber."""
    return [(tenant, f"sub.{tenant}.{name}") for tenant in TENANTS for name in SUBSCRIBERS]


def reply_queues() -> list[tuple[str, str]]:
    """Each tenant and its queue for replies."""
    return [(tenant, f"reply.{tenant}.chaos") for tenant in TENANTS]


def _inherited() -> dict[str, str]:
    inherited = {key: text for key, text in os.environ.items() if "BATCHYARD" not in key}
    # The rooms are imported from the root of the tree, wherever the run was started.
    return {**inherited, "PYTHONPATH": str(_ROOT)}


def _signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _port(url: str) -> int:
    return int(url.rpartition(":")[2].partition("/")[0])
