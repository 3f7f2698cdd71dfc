"""`python -m benchmarks.early_files`: how soon a batch of 200 MB ends after its last row.

Its parts, as `--row-kib` makes them, are committed at `--rate` MB a second; a separate process
finishes it, once with a file that is begun while the batch runs, and once without. Of each it says
the seconds from the last commit to the end, the maximum growth in memory of that process, and the
seconds of its core.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress

import psutil

from benchmarks.finaliser_memory import (
    BATCH_KIB,
    GOAL_MEBIBYTES,
    MEBIBYTE,
    ROWS_A_PART,
    commit,
    own_servers,
    planned,
)
from dispatcher.early_files import EarlyFiles, EarlyOutputs
from dispatcher.finaliser import Finaliser
from shared import ids
from shared.lifecycle import Status
from shared.slices import Claim
from shared.state import State
from shared.storage import Storage

#: How often the finishing process looks at the batch and at its own memory.
_LOOK_SECONDS = 0.02
#: What is to be left of the time that the end takes without an early file.
_GOAL = 0.5


@asynccontextmanager
async def running(early_files: EarlyOutputs, *, is_early: bool) -> AsyncIterator[None]:
    """Begin output files during the block, or none."""
    beginning = asyncio.create_task(early_files.run()) if is_early else None
    try:
        yield
    finally:
        if beginning is not None:
            beginning.cancel()
            with suppress(asyncio.CancelledError):
                await beginning


async def commit_at(
    state: State,
    storage: Storage,
    claims: Iterable[Claim],
    *,
    row_kib: int,
    rate: float,
    until: Callable[[], bool] = lambda: False,
) -> None:
    """Commit a part for each claim, with `rate` MB a second together, until that is so."""
    began, done = time.perf_counter(), 0.0
    for claim in claims:
        if until():
            return
        await commit(state, storage, claim, row_kib * 1024, has_errors=False)
        done += ROWS_A_PART * row_kib / 1024
        await asyncio.sleep(max(0.0, done / rate - (time.perf_counter() - began)))


async def _finish(redis_url: str, batch_id: str, is_early: bool, *where: str) -> None:  # noqa: FBT001  # of a command line
    """Finish the batch when its last row has come, and print what that took."""
    state, storage = State(redis_url), Storage(*where)
    early_files = EarlyFiles(state, storage)
    finaliser = Finaliser(state, storage, output_seconds=60, early_files=early_files)
    async with running(early_files, is_early=is_early):
        process = psutil.Process()
        before = peak = process.memory_info().rss
        used = time.process_time()
        while await _status(state, batch_id) is not Status.FINALIZING:
            peak = max(peak, process.memory_info().rss)
            await asyncio.sleep(_LOOK_SECONDS)
        began = time.perf_counter()
        finishing = asyncio.create_task(finaliser.finish(batch_id))
        while not finishing.done():
            await asyncio.wait([finishing], timeout=_LOOK_SECONDS)
            peak = max(peak, process.memory_info().rss)
        await finishing
        seconds, used = time.perf_counter() - began, time.process_time() - used
        is_completed = await _status(state, batch_id) is Status.COMPLETED
        print(json.dumps([seconds, (peak - before) / MEBIBYTE, used, is_completed]))
    await state.close()
    storage.close()


async def _status(state: State, batch_id: str) -> Status:
    return (await state.batches.statuses([batch_id]))[batch_id]


async def _commit_all(
    redis_url: str, where: tuple[str, ...], options: argparse.Namespace, *, is_early: bool
) -> list[float]:
    """What the finishing process says of a batch that it may begin early, or may not."""
    state, storage = State(redis_url), Storage(*where)
    await storage.prepare()
    batch_id = ids.batch_id("acme", f"early-{is_early}")
    parts = max(2, BATCH_KIB // (ROWS_A_PART * options.row_kib))
    claims = [claim async for claim in planned(state, storage, batch_id, parts)]
    command = [sys.executable, "-m", "benchmarks.early_files"]
    command += ["--finish", redis_url, batch_id, str(int(is_early)), *where]
    finishing = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    await commit_at(state, storage, claims, row_kib=options.row_kib, rate=options.rate)
    said, _ = await finishing.communicate()
    await state.close()
    storage.close()
    found: list[float] = json.loads(said.splitlines()[-1])
    return found


def main() -> int:
    """Exit code 1 when the early file saves too little, or takes too much memory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--row-kib", type=int, default=4)
    parser.add_argument("--rate", type=float, default=8)
    parser.add_argument("--finish", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.finish:
        redis_url, batch_id, is_early, *where = options.finish
        asyncio.run(_finish(redis_url, batch_id, is_early == "1", *where))
        return 0
    found = {}
    with own_servers("early-files") as (redis_url, own):
        for is_early in (False, True):
            running = _commit_all(redis_url, own, options, is_early=is_early)
            found[is_early] = asyncio.run(running)
    for is_early, (seconds, growth, used, _) in found.items():
        print(
            f"{'begun early' if is_early else 'made at the end'}: {seconds:.2f} s from the last "
            f"commit to the end, memory grew by {growth:.0f} MiB, {used:.1f} s of a core"
        )
    is_good = found[True][0] <= _GOAL * found[False][0] and found[True][1] <= GOAL_MEBIBYTES
    return 0 if is_good and all(one[-1] for one in found.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
