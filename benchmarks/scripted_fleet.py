"""A fleet without Ray: real servers, gateway, dispatcher and lane job, and a scripted engine."""

import asyncio
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.bench_yard import running_yard
from cli.servers.ports import free_port
from cli.servers.process import Child
from shared.state import State

MODEL = "scripted"
_LANE = f"{MODEL}@none"
_JOB = "scripted-lane-job"
_HOST = "127.0.0.1"


@dataclass(frozen=True)
class ScriptedFleet:
    """Where it serves."""

    base_url: str
    redis_url: str
    tenant_amqp_url: str
    engine_port: int
    folder: Path


@contextmanager
def running_scripted_fleet(
    folder: Path | None = None,
    *,
    changes: Mapping[str, str] | None = None,
    with_ray: bool = False,
) -> Iterator[ScriptedFleet]:
    """A fleet in its own folder; it is stopped afterwards.

    `changes` are more variables of its processes' environment. `with_ray`, waves and the calls to
    the engine are real ones.
    """
    with tempfile.TemporaryDirectory(prefix="batchyard-bench-") as made:
        place = folder or Path(made)
        names = ("gateway", "dispatcher")
        with running_yard(place, names, model=MODEL, changes=changes) as yard:
            port = free_port()
            commands = {
                "engine": ("benchmarks.scripted_engine", _HOST, str(port)),
                "lane-job": ("benchmarks.scripted_lane", _LANE, _JOB, str(port)),
            }
            if with_ray:
                commands = {"lane-job": ("benchmarks.paced_lane", _LANE, _JOB, str(port))}
            asyncio.run(_open_job(yard.redis_url))
            children = [
                Child(name, [sys.executable, "-m", *command], place, environment=yard.environment)
                for name, command in commands.items()
            ]
            try:
                for child in children:
                    child.start()
                yield ScriptedFleet(
                    f"{yard.address}/v1", yard.redis_url, yard.tenant_amqp_url, port, place
                )
            finally:
                for child in reversed(children):
                    child.stop()


async def _open_job(redis_url: str) -> None:
    """Make it the lane's job before the dispatcher looks for one."""
    state = State(redis_url)
    await state.lanes.open_job(_LANE, "", _JOB)
    await state.close()
