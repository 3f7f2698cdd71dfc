"""`python -m benchmarks.beside_early_files`: what small calls wait for beside eight early files.

Eight batches with answers of `--row-kib` commit parts at `--rate` MB a second together. A process
makes as many calls to Redis and S3 as the plan of a small batch takes, twenty times a second, while
nobody begins their output files, while it does, and while a process of its own does, as in a fleet.
"""

import argparse
import asyncio
import os
import subprocess
import sys
import time
from itertools import chain

from benchmarks.early_files import commit_at, running
from benchmarks.finaliser_memory import ROWS_A_PART, own_servers, planned
from benchmarks.live_load import percentile
from dispatcher.early_files import EarlyFiles
from dispatcher.early_process import EarlyProcess
from dispatcher.hurry import Hurry
from shared import ids
from shared.interpreter import prepare_to_serve
from shared.state import State
from shared.storage import Storage

_BATCHES = [ids.batch_id("acme", f"beside-{number}") for number in range(8)]
_PAUSE_SECONDS = 0.05
_READS, _KEY = 8, "beside"
_NONE = "no early files"
_VARIABLES = tuple(
    f"BATCHYARD_{name}"
    for name in (
        "REDIS_URL",
        "S3_ENDPOINT",
        "S3_ACCESS_KEY",
        "S3_SECRET_KEY",
        "S3_BUCKET",
        "CATALOG",
    )
)


async def _call(redis_url: str, seconds: float, what: str, *where: str) -> None:
    """Make calls for so long, and print what they took."""
    prepare_to_serve()
    state, storage = State(redis_url), Storage(*where)
    taken, until, hurry = list[float](), time.monotonic() + seconds, Hurry()
    here = what == "eight early files here"
    files = EarlyFiles(state, storage, hurry) if here else EarlyProcess(state, hurry)
    os.environ |= dict(zip(_VARIABLES, (redis_url, *where, ""), strict=True))
    async with running(files, is_early=what != _NONE):
        while time.monotonic() < until:
            began = time.perf_counter()
            with hurry.here():
                for _ in range(_READS):
                    await state.batches.get(_BATCHES[0])
                await storage.put(_KEY, b"x" * 1024)
                await storage.get(_KEY)
            taken.append(1000 * (time.perf_counter() - began))
            await asyncio.sleep(_PAUSE_SECONDS)
    shown = ", ".join(f"p{part} {percentile(taken, part):.0f}" for part in (50, 95, 99))
    print(f"beside {what}: {shown}, slowest {max(taken):.0f} ms of {len(taken)}", flush=True)
    await state.close()
    storage.close()


async def _commit(
    redis_url: str, where: tuple[str, ...], options: argparse.Namespace, what: str
) -> None:
    """Commit parts of all batches in turns, until the other process has ended."""
    state, storage = State(redis_url), Storage(*where)
    await storage.prepare()
    mebibytes = ROWS_A_PART * options.row_kib / 1024
    # A third more than are needed, as those of a batch must not end.
    parts = 3 + int(1.3 * options.rate * options.seconds / mebibytes / len(_BATCHES))
    claims = [
        [claim async for claim in planned(state, storage, batch_id, parts)] for batch_id in _BATCHES
    ]
    command = [sys.executable, "-m", "benchmarks.beside_early_files"]
    command += ["--call", redis_url, str(options.seconds), what, *where]
    calling = await asyncio.create_subprocess_exec(*command)
    await commit_at(
        state,
        storage,
        chain.from_iterable(zip(*claims, strict=True)),
        row_kib=options.row_kib,
        rate=options.rate,
        until=lambda: calling.returncode is not None,
    )
    if await calling.wait():
        raise subprocess.CalledProcessError(calling.returncode or 0, command)
    await state.close()
    storage.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--row-kib", type=int, default=8)
    parser.add_argument("--rate", type=float, default=20)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--call", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.call:
        redis_url, seconds, what, *where = options.call
        asyncio.run(_call(redis_url, float(seconds), what, *where))
        return
    for what in (_NONE, "eight early files here", "eight early files of a process of their own"):
        # Empty ones each time: the batches have the same names.
        with own_servers("beside-early-files") as (redis_url, own):
            asyncio.run(_commit(redis_url, own, options, what))


if __name__ == "__main__":
    main()
