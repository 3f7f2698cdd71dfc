"""Where the time of small batches goes beside a giant: `python -m benchmarks.lane_steps`.

    python -m benchmarks.lane_steps [--tries N] [--giant-rows N] [--pause SECONDS] [--alone] [--ray]
    python -m benchmarks.lane_steps --together N [--ray]    N batches of 5 rows, and one of as many

The fleet of `benchmarks.lane_waits`, and the moments of each small batch by the fleet's own clocks:
its events, the lane job's log, and what the engine noted.
"""

import argparse
import asyncio
import json
import math
import random
import statistics
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import datetime
from itertools import islice
from pathlib import Path

from benchmarks.lane_rates import CpuLedger
from benchmarks.rows import CHAT
from benchmarks.scripted_engine import report
from benchmarks.scripted_fleet import MODEL, ScriptedFleet, running_scripted_fleet
from benchmarks.tenants import Place, Tenant, giants
from shared.state import State

_HOST = "127.0.0.1"
_SMALL = [16] * 5
_GIANT_TOKENS, _GIANT_WORDS = 128, 180
_POLL_SECONDS, _LIST_SECONDS = 0.01, 0.1
_SHOWN = 4
#: As in `benchmarks.lane_waits`.
_CREATORS = 8
#: Each step of a batch ends at its moment.
STEPS = ("accepted", "planned", "claimed", "asked", "answered", "committed", "finished", "told")

#: The moments of one batch, in seconds since its creation was asked for.
Moments = dict[str, float]


def taken(moments: Mapping[str, float]) -> dict[str, float]:
    """How long each step took."""
    before, steps = 0.0, {}
    for step in STEPS:
        steps[step] = moments[step] - before
        before = moments[step]
    return steps


def claimed_at(log: Iterable[str]) -> dict[str, float]:
    """When a slice of each batch was first started directly, as the lane job's log says."""
    found: dict[str, float] = {}
    for line in log:
        if '"slice.started"' in line:
            entry = json.loads(line)
            at = datetime.fromisoformat(entry["timestamp"]).timestamp()
            found.setdefault(entry["batch_id"], at)
    return found


def lane_steps(fleet: ScriptedFleet, options: argparse.Namespace) -> list[Moments]:
    """The moments of small batches, one after another, beside a giant or alone."""
    place = Place(fleet.base_url, fleet.redis_url, {CHAT: MODEL})
    me, big = Tenant(place, "small"), Tenant(place, "giant")
    file_id = me.upload(CHAT, _SMALL)
    me.run(CHAT, file_id)
    with ExitStack() as stack:
        if not options.alone:
            rows = options.giant_rows
            stack.enter_context(
                giants([big], CHAT, rows=rows, tokens=_GIANT_TOKENS, words=_GIANT_WORDS)
            )
        seen = list(_one_by_one(me, file_id, options.tries, options.pause))
        return asyncio.run(_all_moments(fleet, seen))


def together(fleet: ScriptedFleet, batches: int, turns: int) -> None:
    """Say what small batches cost that come at once, and one batch of as many rows, in turns."""
    place = Place(fleet.base_url, fleet.redis_url, {CHAT: MODEL})
    me = Tenant(place, "small")
    large, small = me.upload(CHAT, _SMALL * batches), me.upload(CHAT, _SMALL)
    me.run(CHAT, small)
    for _ in range(turns):
        for name, file_id, count in (("one", large, 1), ("many", small, batches)):
            cpu, began = CpuLedger(), time.time()
            before = cpu.look()
            seen = _at_once(me, file_id, count)
            seconds = time.time() - began
            spent = cpu.since(before)
            shown = ", ".join(f"{kind} {one:.2f}" for kind, one in sorted(spent.items()))
            print(f"{name}: {seconds:.2f} s; CPU seconds: {shown}")
            show(asyncio.run(_all_moments(fleet, seen)))


def _at_once(tenant: Tenant, file_id: str, batches: int) -> list[tuple[str, float, float, float]]:
    def create(_: int) -> tuple[str, float, float]:
        began = time.time()
        return tenant.create(CHAT, file_id).id, began, time.time()

    told: dict[str, float] = {}
    with ThreadPoolExecutor(_CREATORS) as pool:
        made = list(pool.map(create, range(batches)))
    while len(told) < batches:
        for batch in islice(tenant.client.batches.list(limit=100), batches):
            if batch.status == "completed":
                told.setdefault(batch.id, time.time())
        time.sleep(_LIST_SECONDS)
    return [(id_, began, accepted, told[id_]) for id_, began, accepted in made]


def _one_by_one(
    tenant: Tenant, file_id: str, tries: int, pause: float
) -> Iterator[tuple[str, float, float, float]]:
    """Of each batch when its creation began and ended, and when it was seen to be over."""
    dice = random.Random(16)
    for _ in range(tries):
        began = time.time()
        batch = tenant.create(CHAT, file_id)
        accepted = time.time()
        while tenant.client.batches.retrieve(batch.id).status != "completed":
            time.sleep(_POLL_SECONDS)
        yield batch.id, began, accepted, time.time()
        time.sleep(pause * (0.5 + dice.random()))


async def _all_moments(
    fleet: ScriptedFleet, seen: Sequence[tuple[str, float, float, float]]
) -> list[Moments]:
    engine = await report(_HOST, fleet.engine_port)
    with (fleet.folder / "lane-job.log").open() as log:
        claims = claimed_at(log)
    state = State(fleet.redis_url)
    histories = await state.events.history([id_ for id_, *_ in seen])
    await state.close()
    found = []
    for (id_, began, accepted, told), history in zip(seen, histories, strict=True):
        events = {e.snapshot()["status"]: int(e.fields["at_ms"]) / 1000 for e in history}
        moments = {
            "accepted": accepted,
            "planned": events["in_progress"],
            "claimed": claims[id_],
            "asked": engine.came_at[id_],
            "answered": engine.left_at[id_],
            "committed": events["finalizing"],
            "finished": events["completed"],
            "told": told,
        }
        found.append({step: at - began for step, at in moments.items()})
    return found


def show(samples: Sequence[Moments]) -> None:
    """A line for the steps' medians and p95, and one for each of the slowest batches."""
    each = [taken(moments) for moments in samples]
    print(f"{'':10}" + "".join(f"{step:>11}" for step in STEPS) + f"{'whole':>11}")
    for name, part in (("p50", 0.5), ("p95", 0.95)):
        steps = [_part([one[step] for one in each], part) for step in STEPS]
        _line(name, [*steps, _part([moments["told"] for moments in samples], part)])
    slowest = sorted(samples, key=lambda moments: moments["told"], reverse=True)[:_SHOWN]
    for moments in slowest:
        _line("slow", [*taken(moments).values(), moments["told"]])
    whole = [moments["told"] for moments in samples]
    print(f"{len(whole)} batches, mean {statistics.mean(whole):.3f} s")


def _line(name: str, seconds: Iterable[float]) -> None:
    print(f"{name:10}" + "".join(f"{one:11.3f}" for one in seconds))


def _part(times: Sequence[float], part: float) -> float:
    return sorted(times)[math.ceil(part * len(times)) - 1]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lane_steps", description=__doc__)
    parser.add_argument("--tries", type=int, default=60)
    parser.add_argument("--giant-rows", type=int, default=16_000)
    parser.add_argument("--pause", type=float, default=1.0)
    parser.add_argument("--alone", action="store_true")
    parser.add_argument("--ray", action="store_true", help="real waves and calls over Ray Serve")
    parser.add_argument("--together", type=int, default=0)
    parser.add_argument("--turns", type=int, default=2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="batchyard-bench-") as made:
        debug = {"BATCHYARD_LOG_LEVEL": "DEBUG"}
        with running_scripted_fleet(Path(made), changes=debug, with_ray=options.ray) as fleet:
            if options.together:
                together(fleet, options.together, options.turns)
            else:
                show(lane_steps(fleet, options))


if __name__ == "__main__":
    main()
