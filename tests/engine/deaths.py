"""Processes of an engine, and their deaths."""

import asyncio
import signal
from contextlib import suppress

import psutil
import pytest

from tests.answers import answers
from tests.eventually import eventually


def engine_core(app_name: str) -> psutil.Process | None:
    """The process that holds the model of this application's only replica."""
    # Ray calls it `ray::ServeReplica:NAME:engine`, or during a call by the last part of NAME.
    replica = f"{app_name.rpartition('.')[2]}:engine"
    for process in psutil.process_iter(["cmdline"]):
        is_core = "EngineCore" in " ".join(process.info["cmdline"] or [])
        # One that is just ending, or whose parents are, is none.
        with suppress(psutil.NoSuchProcess):
            if is_core and any(replica in " ".join(one.cmdline()) for one in process.parents()):
                return process
    return None


def replica_of(core: psutil.Process | None) -> psutil.Process | None:
    """The process of the replica that has this core: the parent of what the core is a fork of."""
    server = core and core.parent()
    return server and server.parent()


def fronts(app_name: str) -> set[psutil.Process]:
    """The front processes of this application's only replica."""
    core = engine_core(app_name)
    server = core and core.parent()
    # What has forked them looks like them.
    return {one for one in (server.children() if server else []) if one != core}


async def kill_core(app_name: str, long_line: bytes) -> psutil.Process:
    """Kill the core with rows in it, which are given back; returns what it was.

    `long_line` runs for long enough to be killed.
    """
    from ray import serve

    from worker.engine_client import EngineClient
    from worker.engine_errors import EngineGoneError
    from worker.engine_status import DEPLOYMENT

    handle = serve.get_deployment_handle(DEPLOYMENT, app_name)
    call = asyncio.create_task(answers(EngineClient(app_name), [long_line] * 20))

    async def are_in() -> bool:
        return int(await handle.unfinished.remote()) >= 16

    await eventually(are_in)
    core = engine_core(app_name)
    assert core is not None
    core.send_signal(signal.SIGKILL)
    with pytest.raises(EngineGoneError) as raised:
        await asyncio.wait_for(call, timeout=60)
    assert raised.value.positions is None or len(raised.value.positions) >= 16
    return core


async def answer_next(app_name: str, line: bytes) -> None:
    """Lines that come after a death wait or go back unseen; they never count as the killer."""
    from worker.engine_client import EngineClient
    from worker.engine_errors import EngineUnavailableError

    results: list[tuple[int, bytes]] = []
    while not results:
        try:
            call = answers(EngineClient(app_name), [line])
            results = await asyncio.wait_for(call, timeout=400)
        except EngineUnavailableError:
            await asyncio.sleep(0.2)
    assert results[0][0] == 200
