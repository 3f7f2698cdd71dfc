"""`python -m tests.chaos.outages --seconds 60`: one outage after the other, each under load.

Meanwhile everybody is asked: `/readyz` has to name what is wrong, and calls have to be answered,
with 503 and `retry-after` where they cannot be served. Afterwards work has to go on by itself, and
at the end the checker judges the whole run.
"""

import argparse
import asyncio
import logging
import os
import random
import secrets
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    suppress,
)
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import psutil
from redis.asyncio import Redis

from cli.rebuild.rebuild import Rebuild
from cli.servers import Child
from shared.ledger.batch_records import read_from
from shared.state import State
from shared.state.state import NAMESPACE
from shared.storage import Storage
from shared.tasks import end
from tests.chaos import run as chaos
from tests.chaos.checker import Violation, absorbed, check
from tests.chaos.clients import Clients
from tests.chaos.evidence import load
from tests.chaos.fleet import SETTINGS, TENANTS, ChaosFleet
from tests.chaos.outside import an_outsider
from tests.chaos.plan import DISPATCHERS, GATEWAYS, LANE_JOB, Fault
from tests.chaos.rows import CHAT, lines
from tests.chaos.run import say
from tests.eventually import eventually

#: A call without an answer for this long counts as hanging.
_HANGS_SECONDS = 60.0
_PAUSE_SECONDS = 1.0
#: The number that Redis keeps.
_MAX_DEAD_ROWS = 10_000
_RECOVERY_SECONDS = 300.0
#: Ends of batches, with work on others between, for which Redis is then too old.
_STEPS = 3
#: Batches that are asked for during one outage.
_INTENTS = 8
_METRICS_TOKEN = secrets.token_hex(16)
_CALLS = ("retrieve", "upload", "create")
_GONE = "does not answer"
_ALARM = "takes no messages: its alarm is on"
#: Longer than any lease.
_FREEZE_SECONDS = 20.0
#: Long enough that leases run out only where they should, not because the machine is busy.
_LEASES = {
    "BATCHYARD_LEASE_SECONDS": "8",
    "BATCHYARD_CLAIM_SECONDS": "10",
    "BATCHYARD_LANE_JOB_SILENCE_SECONDS": "12",
}
_BUSY = (
    b'<?xml version="1.0" encoding="UTF-8"?>'
    b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
)


class OutageFleet(ChaosFleet):
    """The fleet for outages: services that stay down, and dispatchers with `/readyz`."""

    settings: Mapping[str, str] = {**SETTINGS, **_LEASES}

    def __init__(self, run_dir: Path) -> None:
        super().__init__(run_dir)
        # A file that must not grow is then an error, as on a full disk, and no signal that kills.
        command = ["env", "--ignore-signal=XFSZ", *self.redis.child._command]  # noqa: SLF001  # the same program
        self.redis._child = Child("redis", command, run_dir / "redis")  # noqa: SLF001  # nobody else needs another one

    def environment(self, client: str) -> dict[str, str]:
        """The environment of dispatchers, with a port for `/readyz`."""
        variables = super().environment(client)
        if client in DISPATCHERS:
            variables["BATCHYARD_HEALTH_HOST"] = self.host
            variables["BATCHYARD_HEALTH_PORT"] = str(self.ports.get(f"{client}-health"))
            variables["BATCHYARD_METRICS_TOKEN"] = _METRICS_TOKEN
        return variables

    @asynccontextmanager
    async def unguarded(self) -> AsyncIterator[None]:
        """Start again whatever ends during the block."""
        await self.stop_guarding()
        try:
            yield
        finally:
            self.guard()

    def address(self, name: str) -> str:
        """Where a gateway or dispatcher answers, past all proxies."""
        return self.url(self.ports.get(name if name in GATEWAYS else f"{name}-health"))

    async def leads(self, name: str) -> bool:
        """Whether a dispatcher says so."""
        async with httpx.AsyncClient(timeout=_HANGS_SECONDS) as http:
            token = {"authorization": f"Bearer {_METRICS_TOKEN}"}
            answer = await http.get(f"{self.address(name)}/metrics", headers=token)
        return "batchyard_dispatcher_leads 1.0" in answer.text

    def is_frozen(self, name: str) -> bool:
        """Whether nothing listens there."""
        with suppress(psutil.NoSuchProcess):
            stopped = psutil.STATUS_STOPPED
            return any(psutil.Process(pid).status() == stopped for pid in self.pids(name))
        return False


class Found:
    """What was seen of one outage."""

    def __init__(self, outage: "Outage") -> None:
        self._outage = outage
        self.violations: list[Violation] = []
        self.answers: Counter[tuple[str, int]] = Counter()
        self.longest_seconds = 0.0
        self._reports: defaultdict[str, list[dict[str, str]]] = defaultdict(list)

    async def ask(self, name: str, call: Callable[[], Any]) -> None:
        """Make one call, and judge its answer."""
        began = time.monotonic()
        try:
            async with asyncio.timeout(_HANGS_SECONDS):
                answer: httpx.Response = await call()
        except (httpx.HTTPError, TimeoutError) as error:
            self.broken("no_answer", f"{name}: {error!r} after {time.monotonic() - began:.0f} s")
            return
        self.answers[name, answer.status_code] += 1
        self.longest_seconds = max(self.longest_seconds, time.monotonic() - began)
        if answer.status_code == HTTPStatus.SERVICE_UNAVAILABLE:
            if "retry-after" not in answer.headers:
                self.broken("no_retry_after", name)
        elif answer.status_code >= HTTPStatus.INTERNAL_SERVER_ERROR:
            self.broken("wrong_status", f"{name}: {answer.status_code} {answer.text[:200]}")

    async def ask_ready(self, http: httpx.AsyncClient, fleet: OutageFleet, name: str) -> None:
        """Record what it reports as not ready, if anything."""
        with suppress(httpx.HTTPError, ValueError):
            answer = await http.get(f"{fleet.address(name)}/readyz")
            if answer.status_code == HTTPStatus.SERVICE_UNAVAILABLE:
                self._reports[name.rpartition("-")[0]].append(answer.json())

    def judge(self) -> None:
        """Whether everything was seen that must be."""
        for room, services in self._outage.amiss.items():
            for service, word in services.items():
                reports = Counter(report.get(service) for report in self._reports[room])
                if word not in reports:
                    self.broken("not_named", f"{room}: {service} was {dict(reports)}")
        for name in _CALLS:
            codes = {code for call, code in self.answers if call == name}
            if name in self._outage.refused:
                if HTTPStatus.SERVICE_UNAVAILABLE not in codes:
                    self.broken("not_refused", f"{name}: {codes}")
            elif name not in self._outage.either and not any(
                code < HTTPStatus.INTERNAL_SERVER_ERROR for code in codes
            ):
                self.broken("not_served", f"{name}: {codes}")

    def broken(self, kind: str, says: str) -> None:
        """A broken promise."""
        self.violations.append(Violation(kind, self._outage.name, says))


class Outage(NamedTuple):
    """A fault, and what must be seen of it."""

    name: str
    happening: Callable[[OutageFleet, Found], AbstractAsyncContextManager[None]]
    #: What `/readyz` has to say of which service, by the room that is asked.
    amiss: Mapping[str, Mapping[str, str]] = {}
    #: The calls that always fail during the outage, and those that sometimes fail.
    refused: Sequence[str] = ()
    either: Sequence[str] = ()
    min_seconds: float = 0.0
    #: Whether uploads in parts that were not completed are begun again.
    loses_uploads: bool = False


class Prober(Clients):
    """The clients at work, and a probe that calls all the time."""

    def __init__(self, fleet: OutageFleet, *, seed: int, at_once: int) -> None:
        super().__init__(fleet, seed=seed, at_once=at_once)
        self._outage_fleet = fleet
        self._key = ""
        self._chance = random.Random(seed)
        self._loses_uploads = False

    async def begin(self) -> None:
        """Connect all of them."""
        await self.start()
        self._key = await self._outage_fleet.key(TENANTS[0])

    async def live_through(self, outage: Outage, seconds: float) -> Found:
        """Keep the outage up for this long, and then wait until everything works again."""
        fleet, found = self._outage_fleet, Found(outage)
        self._loses_uploads |= outage.loses_uploads
        intents = [await self._prepared() for _ in range(_INTENTS)]
        headers = {"authorization": f"Bearer {self._key}"}
        async with httpx.AsyncClient(headers=headers, timeout=_HANGS_SECONDS) as http:
            async with outage.happening(fleet, found):
                until = time.monotonic() + max(seconds, outage.min_seconds)
                while time.monotonic() < until:
                    await self._round(http, intents, found)
                    await asyncio.sleep(_PAUSE_SECONDS)
            found.judge()
            try:
                async with asyncio.timeout(_RECOVERY_SECONDS):
                    await self._recover(http, intents)
            except (TimeoutError, AssertionError):
                found.broken("not_recovered", f"not within {_RECOVERY_SECONDS} s")
        return found

    async def _round(
        self, http: httpx.AsyncClient, intents: list[tuple[dict[str, Any], str]], found: Found
    ) -> None:
        fleet = self._outage_fleet
        asked = [name for name in (*GATEWAYS, *DISPATCHERS) if not fleet.is_frozen(name)]
        async with asyncio.TaskGroup() as group:
            for name in asked:
                group.create_task(found.ask_ready(http, fleet, name))
                if name in GATEWAYS:
                    calls = _calls(http, fleet.address(name), *self._chance.choice(intents))
                    for call, make in calls.items():
                        group.create_task(found.ask(call, make))

    async def _recover(
        self, http: httpx.AsyncClient, intents: list[tuple[dict[str, Any], str]]
    ) -> None:
        await all_ready(http, self._outage_fleet)
        # Repeated, as clients do without a clear answer: the key makes each the same batch.
        for intent, file_id in intents:
            await self._create(intent, file_id)
        for intent, _ in intents:
            await self._see_end(intent, self._chance)

    def _is_forgotten(self, answer: httpx.Response) -> bool:
        return self._loses_uploads and answer.status_code == HTTPStatus.NOT_FOUND

    async def _prepared(self) -> tuple[dict[str, Any], str]:
        """A batch to create, and its input, which exists already."""
        intent = self._intent(TENANTS[0], self._chance, "plain", size=(1, 5))
        body = lines(intent["key"], intent["rows"], intent["model"], padding=intent["padding"])
        return intent, await self._upload(TENANTS[0], body)


def _calls(
    http: httpx.AsyncClient, address: str, intent: Mapping[str, Any], file_id: str
) -> dict[str, Callable[[], Any]]:
    return {
        "retrieve": partial(http.get, f"{address}/v1/batches/batch_{'0' * 32}"),
        "upload": partial(
            http.post,
            f"{address}/v1/files",
            files={"file": ("probe.jsonl", b"probe\n")},
            data={"purpose": "batch"},
        ),
        "create": partial(
            http.post,
            f"{address}/v1/batches",
            json={"input_file_id": file_id, "endpoint": CHAT, "completion_window": "24h"},
            headers={"idempotency-key": intent["key"]},
        ),
    }


async def all_ready(http: httpx.AsyncClient, fleet: OutageFleet) -> None:
    """Return once all processes report that they are ready."""

    async def are() -> bool:
        with suppress(httpx.HTTPError):
            names = (*GATEWAYS, *DISPATCHERS)
            answers = [await http.get(f"{fleet.address(name)}/readyz") for name in names]
            return all(answer.is_success for answer in answers)
        return False

    await eventually(are, _RECOVERY_SECONDS)


# What happens.


@asynccontextmanager
async def gone(fleet: OutageFleet, _: Found, *, server: str) -> AsyncIterator[None]:
    """Killed, and started again only afterwards."""
    async with fleet.unguarded():
        await fleet.do(Fault(0, "kill", server))
        yield


@asynccontextmanager
async def silent(fleet: OutageFleet, _: Found, *, server: str) -> AsyncIterator[None]:
    """All connections stay, new ones are taken, and nothing is ever answered."""
    links = [f"{client}>{server}" for client in (*GATEWAYS, *DISPATCHERS, LANE_JOB)]
    try:
        for link in links:
            await fleet.order({"fault": "hang", "link": link})
        yield
    finally:
        for link in links:
            await fleet.order({"fault": "heal", "link": link})


@asynccontextmanager
async def busy_s3(fleet: OutageFleet, _: Found) -> AsyncIterator[None]:
    """Every call is answered with 503 and S3's own error."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = b"HTTP/1.1 503 Slow Down\r\nconnection: close\r\ncontent-type: application/xml\r\n"
        with suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            asked = (await reader.readuntil(b"\r\n\r\n")).lower()
            length = asked.partition(b"content-length: ")[2].partition(b"\r\n")[0]
            await reader.readexactly(int(length or 0))
            writer.write(head + b"content-length: %d\r\n\r\n" % len(_BUSY) + _BUSY)
            await writer.drain()
        writer.close()

    async with fleet.unguarded():
        await fleet.do(Fault(0, "kill", "s3"))
        port = int(fleet.ceph.endpoint.rpartition(":")[2])
        async with await asyncio.start_server(answer, "127.0.0.1", port):
            yield


@asynccontextmanager
async def redis_put_back(fleet: OutageFleet, _: Found) -> AsyncIterator[None]:
    """Redis goes back to an older state and is rebuilt while everything else keeps running."""
    copy = fleet.run_dir / "redis-before"
    shutil.rmtree(copy, ignore_errors=True)
    log = next((fleet.run_dir / "redis").rglob("appendonlydir"))
    shutil.copytree(log, copy)
    state, storage = State(fleet.redis.url), Storage(*fleet.s3)
    read_from(state, storage)
    try:
        await _much_happens(fleet)
        async with fleet.unguarded(), _cut_off_from(fleet, "redis") as heal:
            dead = [row.id for row in await state.dead_rows.all(limit=_MAX_DEAD_ROWS)]
            fleet.faults.note("put_back", dead_rows=dead)
            await fleet.do(Fault(0, "kill", "redis"))
            shutil.rmtree(log)
            shutil.copytree(copy, log)
            await fleet.serve_again("redis")
            fleet.redis.wait(_RECOVERY_SECONDS)
            rebuilding = asyncio.create_task(
                Rebuild(state, storage, progress=lambda *_: None).run()
            )
            # Until it has begun, processes would announce other events under known ids.
            await eventually(state.restore.is_under_way, _RECOVERY_SECONDS)
            await heal()
            yield
            await rebuilding
    finally:
        storage.close()
        await state.close()


async def _much_happens(fleet: OutageFleet) -> None:
    """Return when batches have ended since, and slices of others have their results."""
    redis: Redis[str] = Redis.from_url(fleet.redis.url, decode_responses=True)

    async def counts() -> tuple[int, int]:
        ended = sum(map(int, (await redis.hgetall(f"{NAMESPACE}ended")).values()))
        jobs = [f"{NAMESPACE}lane:{lane}:job" for lane in await redis.smembers(f"{NAMESPACE}lanes")]
        return ended, sum([int(await redis.hget(job, "slices") or 0) for job in jobs])

    before = await counts()

    async def have_grown() -> bool:
        return all(now > then for now, then in zip(await counts(), before, strict=True))

    try:
        for _ in range(_STEPS):
            before = await counts()
            await eventually(have_grown, _RECOVERY_SECONDS)
    finally:
        await redis.aclose()


@asynccontextmanager
async def _cut_off_from(
    fleet: OutageFleet, server: str
) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """Nothing reaches it until the end, or until the yielded function is called."""
    links = [f"{client}>{server}" for client in (*GATEWAYS, *DISPATCHERS, LANE_JOB)]

    async def heal() -> None:
        for link in links:
            await fleet.order({"fault": "heal", "link": link})

    try:
        for link in links:
            await fleet.order({"fault": "refuse", "link": link})
        yield heal
    finally:
        await heal()


@asynccontextmanager
async def redis_disk_full(fleet: OutageFleet, _: Found) -> AsyncIterator[None]:
    """Its log cannot grow: Redis ends at the next write, and is started again each time."""

    def let_grow(limit: int) -> None:
        with suppress(psutil.NoSuchProcess):
            for pid in fleet.pids("redis"):
                process = psutil.Process(pid)
                process.rlimit(psutil.RLIMIT_FSIZE, (limit, psutil.RLIM_INFINITY))

    def written() -> int:
        files = (fleet.run_dir / "redis" / "redis").rglob("*.aof")
        return max((path.stat().st_size for path in files), default=0)

    async def keep_full(limit: int) -> None:
        while True:
            if not fleet.redis.child.is_alive():
                fleet.counts["deaths of a full disk"] += 1
                fleet.redis.launch()
                let_grow(limit)
            await asyncio.sleep(_PAUSE_SECONDS / 10)

    async with fleet.unguarded():
        limit = written()
        let_grow(limit)
        keeping = asyncio.create_task(keep_full(limit))
        try:
            yield
        finally:
            await end(keeping)
            let_grow(psutil.RLIM_INFINITY)


@asynccontextmanager
async def rabbitmq_disk_full(fleet: OutageFleet, _: Found) -> AsyncIterator[None]:
    """The broker's own alarm, which blocks publishers."""
    await asyncio.to_thread(fleet.rabbitmq.ctl, "set_disk_free_limit", "1000000GB")
    try:
        yield
    finally:
        await asyncio.to_thread(fleet.rabbitmq.ctl, "set_disk_free_limit", "200MB")


@asynccontextmanager
async def half_frozen(fleet: OutageFleet, found: Found) -> AsyncIterator[None]:
    """In both pairs, the process that holds the leases is frozen until the other one has them."""
    redis: Redis[str] = Redis.from_url(fleet.redis.url, decode_responses=True)
    leading = [name for name in DISPATCHERS if await fleet.leads(name)]
    holder = await redis.get(f"{NAMESPACE}lease:relay:submissions") or ""
    relaying = [name for name in GATEWAYS if str(fleet.pids(name)[0]) == holder.rpartition(":")[2]]
    if not (leading and relaying):
        found.broken("not_fenced", f"nobody leads or relays: {leading}, {relaying}")
    leases = [f"{NAMESPACE}lease:{name}:epoch" for name in ("dispatcher", "relay:submissions")]
    before = await redis.mget(leases)
    names = [*leading, *relaying]
    pids = [pid for name in names for pid in fleet.pids(name)]
    try:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        # Stopping may take long on a busy machine.
        await eventually(lambda: all(map(fleet.is_frozen, names)), 60)
        yield
    finally:
        after = await redis.mget(leases)
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
        await redis.aclose()
    for lease, old, new in zip(leases, before, after, strict=True):
        if int(new or 0) <= int(old or 0):
            found.broken("not_fenced", f"{lease} is {new} after {old}: nobody took over")

    async def is_one() -> bool:
        return sum([await fleet.leads(name) for name in DISPATCHERS]) == 1

    try:
        await eventually(is_one, _RECOVERY_SECONDS)
    except AssertionError:
        found.broken("not_fenced", "not one dispatcher leads")


def _both(**services: str) -> dict[str, dict[str, str]]:
    return {"gateway": services, "dispatcher": services}


OUTAGES = (
    Outage("rabbitmq-gone", partial(gone, server="rabbitmq"), _both(rabbitmq=_GONE)),
    Outage("rabbitmq-disk-full", rabbitmq_disk_full, _both(rabbitmq=_ALARM)),
    Outage("redis-gone", partial(gone, server="redis"), _both(redis=_GONE), _CALLS),
    Outage("redis-silent", partial(silent, server="redis"), _both(redis=_GONE), _CALLS),
    Outage(
        "redis-disk-full", redis_disk_full, _both(redis=_GONE), ("upload", "create"), ("retrieve",)
    ),
    Outage("redis-put-back", redis_put_back, either=_CALLS, loses_uploads=True),
    Outage("s3-gone", partial(gone, server="s3"), _both(s3=_GONE), ("upload", "create")),
    Outage("s3-busy", busy_s3, _both(s3=_GONE), ("upload", "create")),
    Outage("s3-silent", partial(silent, server="s3"), _both(s3=_GONE), ("upload", "create")),
    Outage("ray-gone", partial(gone, server="cluster"), {"dispatcher": {"ray": _GONE}}),
    Outage("half-frozen", half_frozen, min_seconds=_FREEZE_SECONDS),
)


class Options(NamedTuple):
    """The options of a run."""

    run_dir: Path
    names: Sequence[str]
    seconds: float
    seed: int
    at_once: int


async def run(options: Options) -> tuple[list[Violation], Counter[str], dict[str, int]]:
    """Go through the outages; returns violations, what happened, and what was absorbed."""
    fleet = OutageFleet(options.run_dir)
    violations: list[Violation] = []
    stack = AsyncExitStack()
    try:
        fleet.start()
        clients = Prober(fleet, seed=options.seed, at_once=options.at_once)
        try:
            async with httpx.AsyncClient(timeout=_HANGS_SECONDS) as http:
                await all_ready(http, fleet)
            await clients.begin()
            outsider = await stack.enter_async_context(an_outsider(fleet, seed=options.seed))
            await eventually(fleet.are_queues_registered, _RECOVERY_SECONDS)
            fleet.guard()
            work = asyncio.create_task(clients.work())
            for outage in OUTAGES:
                if outage.name in options.names:
                    began = time.monotonic()
                    found = await clients.live_through(outage, options.seconds)
                    violations += found.violations
                    answers = {f"{call} {code}": n for (call, code), n in found.answers.items()}
                    say(
                        f"{outage.name:<20} {time.monotonic() - began:5.0f} s  "
                        f"longest answer {found.longest_seconds:4.1f} s  "
                        f"{len(found.violations)} violations  {dict(sorted(answers.items()))}"
                    )
            clients.stopping.set()
            await fleet.heal()
            await outsider.verdict()
            violations += outsider.violations
            if not await chaos._settle(fleet, clients, work, say):  # noqa: SLF001  # a run like the others
                violations.append(Violation("stalled", "the run", "nothing moves any more"))
        finally:
            await stack.aclose()
            await clients.close()
        await chaos.collect_all(fleet)
    finally:
        fleet.stop()
    evidence = load(options.run_dir)
    counts = fleet.counts + clients.counts + Counter(outsider.counts)
    return violations + check(evidence), counts, absorbed(evidence)


def main() -> int:
    """Exit code 1 for any violation."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.outages", description=__doc__)
    names = [outage.name for outage in OUTAGES]
    parser.add_argument("names", nargs="*", choices=[*names, []])
    parser.add_argument("--seconds", type=float, default=60.0, help="how long each of them lasts")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(2**31))
    parser.add_argument("--clients", type=int, default=6, help="batches under way at once")
    parser.add_argument("--folder", type=Path, help="where the run directory is made")
    options = parser.parse_args()
    # Lane jobs are not our own children, so the end of a run must end them too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    for library in ("aio_pika", "aiormq"):
        logging.getLogger(library).setLevel(logging.CRITICAL)
    folder = Path(tempfile.mkdtemp(prefix="outages-", dir=options.folder))
    say(f"seed {options.seed}; run directory {folder}")
    intent = Options(folder, options.names or names, options.seconds, options.seed, options.clients)
    violations, counts, survived = asyncio.run(run(intent))
    for table in (dict(counts), survived):
        for name, count in sorted(table.items()):
            say(f"  {name:<42} {count:>8}")
    for violation in violations[:50]:
        say(f"  {violation.kind}: {violation.about}: {violation.says}")
    if violations:
        say(f"\n{len(violations)} violations; everything is in {folder}")
        return 1
    say("\nno violation")
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
