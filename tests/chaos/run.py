"""One run: start, break, heal, wait for the end of everything, and write down what is left."""

import asyncio
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from itertools import cycle, repeat
from pathlib import Path
from typing import NamedTuple

from aio_pika.exceptions import AMQPError
from redis.asyncio import Redis
from redis.exceptions import RedisError

from dispatcher.reaper import Reaper
from shared.ledger.batch_records import read_from
from shared.state import State
from shared.state.state import NAMESPACE
from shared.storage import Storage
from tests.chaos.checker import Violation, absorbed, check
from tests.chaos.clients import Clients, all_clients
from tests.chaos.evidence import collect, load, queue_lengths
from tests.chaos.fleet import TENANTS, ChaosFleet
from tests.chaos.journal import Journal
from tests.chaos.letters import drop_letters
from tests.chaos.live_clients import LiveCallers
from tests.chaos.outside import AtWork, an_outsider
from tests.chaos.plan import (
    DISPATCHERS,
    GATEWAYS,
    LANE_JOB,
    RAY_TARGETS,
    Fault,
    only_kills,
    plan,
    point_by_point,
    room,
)
from tests.chaos.points import POINTS
from tests.chaos.real import RealFleet
from tests.eventually import eventually

Report = Callable[[str], None]

_POLL_SECONDS = 0.5
_REPORT_SECONDS = 5.0
#: After this many faults, wait until a batch moves, or until this time is over.
_FAULTS_BETWEEN_PAUSES = 10
_PAUSE_SECONDS = 60.0
#: With no more points left than this, both processes of a room are to die at all of them.
_SHARED = 4
_BEFORE_COMMIT = ("lane_job.claimed", "sink.rows_run", "sink.part_written")
#: Points that no process reaches while clients are at work.
_IDLE = {"lane_job.closed"}
#: In which armed processes should have come by one of their points.
_PATIENCE_SECONDS = 15.0


class Options(NamedTuple):
    """The options of a run."""

    run_dir: Path
    seconds: float
    seed: int
    #: First, this many deaths at each named point: the nth one at the nth passage.
    points: int = 0
    at_once: int = 12
    gap_seconds: float = 2.0
    #: Every process of ours is to die at some named point, also once it has.
    always_armed: bool = False
    #: On a real Ray and a real engine.
    is_real: bool = False
    #: The run ends after this many kills.
    kills: int = 0
    #: Nothing but this process is hit, and it is killed.
    only: str | None = None


class Outcome(NamedTuple):
    """The result of a run."""

    violations: list[Violation]
    counts: dict[str, int]
    absorbed: dict[str, int]
    odd_ends: Counter[str]
    #: Each kind of fault on each process or link, and the deaths at each named point.
    faults: Counter[str]


async def run(options: Options, report: Report) -> Outcome:
    """Run it to its end."""
    fleet = (RealFleet if options.is_real else ChaosFleet)(options.run_dir)
    callers = LiveCallers(fleet, seed=options.seed)
    try:
        fleet.start()
        report(f"the fleet is up after {fleet.counts['seconds to start']} s")
        async with (
            an_outsider(fleet, seed=options.seed) as outsider,
            all_clients(fleet, seed=options.seed, at_once=options.at_once) as (clients, work),
            callers.at_work() as stop_callers,
        ):
            await _until(fleet.are_queues_registered, 300)
            fleet.guard()
            screen = asyncio.create_task(_show(fleet, clients, report))
            began = time.monotonic()
            missed: list[str] = []
            try:
                if options.points:
                    everyone = clients, outsider, callers, work
                    missed = await _pass_all_points(fleet, *everyone, options.points, report)
                if options.is_real:
                    missed += await _strike_ray(fleet, clients, work, options, report)
                else:
                    await _break(fleet, clients, work, options)
                broken = time.monotonic() - began
                report("healed; waiting for the end of everything")
                clients.stopping.set()
                await fleet.heal()
                await stop_callers()
                await outsider.verdict()
                stalled = not await _settle(fleet, clients, work, report)
            finally:
                screen.cancel()
            counts = dict(fleet.counts + clients.counts + callers.counts)
        await collect_all(fleet)
    finally:
        fleet.stop()
    evidence = load(options.run_dir)
    violations = [Violation("point_missed", name, "no process died there") for name in missed]
    if stalled:
        detail = f"nothing moved for {fleet.stall_seconds} s"
        violations.append(Violation("stalled", "the run", detail))
    violations += outsider.violations + check(evidence)
    counts |= outsider.counts
    counts |= {
        "seconds of faults": round(broken),
        "seconds in all": round(time.monotonic() - began),
        "died at crash points": len(fleet.crashes()),
        "crash points passed": len(set(fleet.crashes())),
        "killed in all": fleet.kills,
    }
    faults = fleet.hit + Counter(f"die at {name}" for name in fleet.crashes())
    return Outcome(violations, counts, absorbed(evidence), fleet.odd_ends, faults)


async def _pass_all_points(  # noqa: C901  # one loop that waits for many things
    fleet: ChaosFleet,
    clients: Clients,
    outsider: AtWork,
    callers: LiveCallers,
    work: "asyncio.Task[None]",
    times: int,
    report: Report,
) -> list[str]:
    """Make our processes die at every named point; returns the points that no process reached."""
    everywhere = {name for names in POINTS.values() for name in names}

    def arming(process: str) -> str:
        deaths = Counter(fleet.crashes())
        left = [name for name in POINTS.get(room(process), ()) if deaths[name] < times]
        if len(left) > _SHARED and process[-1].isdigit():
            # Two that die at the same point would be one death too many.
            left = left[int(process[-1]) % 2 :: 2]
        return ",".join(f"{name}:{deaths[name] + _first(name)}" for name in left)

    fleet.arming = arming
    victims = (*GATEWAYS, *DISPATCHERS, LANE_JOB)
    for name in victims:
        await fleet.do(Fault(0, "kill", name))
    left, deaths = everywhere, Counter[str]()
    last, patience = time.monotonic(), _PATIENCE_SECONDS
    again, is_stuck = last + patience, False
    while time.monotonic() - last < fleet.stall_seconds and not work.done():
        left = {name for name in everywhere if deaths[name] < times}
        if not left:
            break
        if left <= _IDLE and clients.may_begin.is_set():
            clients.may_begin.clear()
            outsider.hold()
            callers.hold()
        fleet.crash_lane_jobs_at(arming(LANE_JOB))
        # Of two lane jobs that began right after each other, the second one is not armed.
        if is_stuck and left <= _IDLE:
            # A few batches let others begin, if all that ran have closed.
            clients.may_begin.set()
        elif is_stuck and arming(LANE_JOB):
            await fleet.do(Fault(0, "kill", LANE_JOB))
        await asyncio.sleep(_POLL_SECONDS)
        if (now := Counter(fleet.crashes())) != deaths:
            for name in now - deaths:
                fleet.faults.note("died", point=name)
            last, patience, deaths = time.monotonic(), _PATIENCE_SECONDS, now
            again = last + patience
        is_stuck = time.monotonic() > again
        if is_stuck:
            # The armed process may not be the leader. A slow machine needs more time.
            patience *= 2
            again = time.monotonic() + patience
        for name in (*GATEWAYS, *DISPATCHERS):
            may_die = any(deaths[point] < nth for point, nth in fleet.armed[name].items())
            if arming(name) and (is_stuck or not may_die):
                await fleet.do(Fault(0, "kill", name))
    clients.may_begin.set()
    outsider.go_on()
    callers.go_on()
    report(f"{len(everywhere) - len(left)} of {len(everywhere)} crash points passed")
    fleet.arming = lambda process: ""
    (fleet.run_dir / "next-crash").unlink(missing_ok=True)
    return sorted(left)


def _first(point: str) -> int:
    """The passage at which a process dies there for the first time."""
    # A lane waits ever longer after jobs that die before they have committed anything.
    return 2 if point in _BEFORE_COMMIT else 1


async def _break(
    fleet: ChaosFleet, clients: Clients, work: "asyncio.Task[None]", options: Options
) -> None:
    """Carry out the plan while the clients work."""
    began, before = time.monotonic(), clients.progress
    until = began + options.seconds
    places, nowhere = point_by_point(options.seed), repeat("")
    if options.always_armed:
        fleet.arming = lambda process: next(places.get(room(process), nowhere))
    aims = fleet.aims if options.only is None else only_kills(fleet.aims, options.only)
    faults = plan(options.seed, options.seconds, gap_seconds=options.gap_seconds, aims=aims)
    async with asyncio.TaskGroup() as group:
        for number, fault in enumerate(faults):
            await asyncio.sleep(max(0.0, fault.at - (time.monotonic() - began)))
            if options.always_armed:
                fleet.crash_lane_jobs_at(next(places[room(LANE_JOB)]))
            if number % _FAULTS_BETWEEN_PAUSES == 0:
                # Faults without work in progress prove nothing: a slow machine gets fewer.
                paused = time.monotonic()
                with suppress(AssertionError):
                    await eventually(lambda seen=before: clients.progress != seen, _PAUSE_SECONDS)  # type: ignore[misc]  # bound now
                began, before = began + time.monotonic() - paused, clients.progress
            is_enough = time.monotonic() > until or 0 < options.kills <= fleet.kills
            if work.done() or is_enough:
                return
            group.create_task(fleet.do(fault))
        await asyncio.sleep(max(0.0, until - time.monotonic()))


async def _strike_ray(
    fleet: ChaosFleet,
    clients: Clients,
    work: "asyncio.Task[None]",
    options: Options,
    report: Report,
) -> list[str]:
    """Beside the plan, kill one part of Ray after the other, each while rows come out of it.

    Returns those that were never there to be killed.
    """
    redis: Redis[str] = Redis.from_url(fleet.redis.url, decode_responses=True)
    began = time.monotonic()
    left = list(RAY_TARGETS)
    breaking = asyncio.create_task(_break(fleet, clients, work, options))
    try:
        for target in cycle(RAY_TARGETS):
            if not left and time.monotonic() - began > options.seconds:
                break
            if not await _rows_come(fleet, redis, target):
                break
            report(f"killing {target}")
            await fleet.do(Fault(0, "kill", target))
            left = [name for name in left if name != target]
        await breaking
    finally:
        breaking.cancel()
        await redis.aclose()
    return left


async def _rows_come(fleet: ChaosFleet, redis: "Redis[str]", target: str) -> bool:
    """Wait until rows are committed and `target` exists; False if that takes too long."""
    began, before = time.monotonic(), None
    while time.monotonic() - began < fleet.stall_seconds:
        with suppress(RedisError):
            [lane] = await redis.smembers(f"{NAMESPACE}lanes") or [""]
            job = await redis.hmget(f"{NAMESPACE}lane:{lane}:job", "id", "rows")
            before = before or job
            if job != before and int(job[1] or 0) and fleet.pids(target):
                return True
        await asyncio.sleep(_POLL_SECONDS)
    return False


async def _settle(
    fleet: ChaosFleet, clients: Clients, work: "asyncio.Task[None]", report: Report
) -> bool:
    """Wait until nothing is under way any more; False if nothing moved for too long."""
    redis: Redis[str] = Redis.from_url(fleet.redis.url, decode_responses=True)
    letters = Journal(fleet.run_dir / "journal" / "letters.jsonl")
    last, before = time.monotonic(), None
    try:
        while time.monotonic() - last < fleet.stall_seconds:
            with suppress(OSError, RedisError, AMQPError):
                await drop_letters(fleet, letters)
                now = await _under_way(fleet, redis)
                if work.done() and not any(now.values()):
                    await work
                    return True
                if (state := (now, clients.progress)) != before:
                    last, before = time.monotonic(), state
            await asyncio.sleep(_POLL_SECONDS)
        report(f"stalled: {before}")
        return False
    finally:
        letters.close()
        await redis.aclose()


async def _under_way(fleet: ChaosFleet, redis: "Redis[str]") -> dict[str, int]:
    """All that has to come to an end."""
    ns = NAMESPACE
    seconds, _ = await redis.time()
    found = {
        "deadlines": await redis.zcard(f"{ns}deadlines"),
        "pipelines": await redis.zcard(f"{ns}pipelines-live"),
        "submissions": await redis.xlen(f"{ns}outbox:submissions"),
        "events": await redis.xlen(f"{ns}outbox:events"),
        "replies": await redis.xlen(f"{ns}outbox:replies"),
        "webhooks": await redis.zcard(f"{ns}webhooks-due"),
        "garbage": await redis.zcount(f"{ns}garbage", "-inf", seconds),
        "doomed": await redis.zcard(f"{ns}doomed"),
        "expired": await redis.zcount(f"{ns}expiring", "-inf", seconds),
    }
    for tenant in TENANTS:
        found[f"live calls of {tenant}"] = await redis.zcard(f"{ns}live-calls:{tenant}")
    for lane in await redis.smembers(f"{ns}lanes"):
        found[f"job {lane}"] = int(bool(await redis.hget(f"{ns}lane:{lane}:job", "id")))
        found[f"claims {lane}"] = await redis.zcard(f"{ns}lane:{lane}:claims")
    found |= await queue_lengths(fleet)
    return found


async def collect_all(fleet: ChaosFleet) -> None:
    """Collect the evidence of a run that is over, with the batches that have left Redis."""
    await _sweep(fleet)
    # They would let batches leave while these are counted.
    await fleet.stop_dispatchers()
    await _bring_back(fleet)
    await collect(fleet)


async def _sweep(fleet: ChaosFleet) -> None:
    """What the dispatcher does each hour for what is a day old, now and for everything."""
    state, storage = State(fleet.redis.url), Storage(*fleet.s3)
    read_from(state, storage)
    try:
        await Reaper(state, storage).sweep_abandoned(older_than_seconds=0)
    finally:
        storage.close()
        await state.close()


async def _bring_back(fleet: ChaosFleet) -> None:
    """Let Redis have the records of all batches again, also of those that have left it."""
    async with Redis.from_url(fleet.redis.url, decode_responses=True) as redis:
        batch_ids = await redis.zrange(f"{NAMESPACE}endings", 0, -1)
    state, storage = State(fleet.redis.url), Storage(*fleet.s3)
    read_from(state, storage)
    try:
        await state.away.bring_back(batch_ids)
    finally:
        storage.close()
        await state.close()


async def _show(fleet: ChaosFleet, clients: Clients, report: Report) -> None:
    began = time.monotonic()
    while True:
        await asyncio.sleep(_REPORT_SECONDS)
        counts = fleet.counts + clients.counts
        report(
            f"{time.monotonic() - began:5.0f} s  batches {counts['batches']} "
            f"(open {len(clients.open)})  rows {counts['rows']}  events {counts['events']}  "
            f"kills {fleet.kills} ({len(set(fleet.crashes()))} points)  "
            f"freezes {counts['freeze'] + counts['cut_off']}  "
            f"links {sum(counts[kind] for kind in ('cut', 'slow', 'hang', 'refuse'))}"
        )


async def _until(condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("RabbitMQ does not register its queues.")
        await asyncio.sleep(_POLL_SECONDS)


def say(text: str) -> None:
    """Print at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
