"""Many small batches against one of as many rows."""

import statistics
import time
from concurrent.futures import ThreadPoolExecutor

from benchmarks.bench_fleet import BenchFleet
from benchmarks.figures import Figure, compared
from benchmarks.rows import CHAT

_ROWS = 5


def small_batches(fleet: BenchFleet, *, turns: int, batches: int = 200) -> list[Figure]:
    """So many batches of 5 rows against one of as many; listing shows when each has ended."""
    rows = batches * _ROWS
    large_file, small_file = fleet.upload(CHAT, rows), fleet.upload(CHAT, _ROWS)
    fleet.seconds(CHAT, fleet.upload(CHAT, rows // 2))
    large, small = [], []
    with ThreadPoolExecutor(16) as pool:
        for _ in range(turns):
            began = time.perf_counter()
            fleet.finish_all([fleet.create(CHAT, large_file)])
            large.append(time.perf_counter() - began)
            began = time.perf_counter()
            made = list(pool.map(lambda _: fleet.create(CHAT, small_file), range(batches)))
            created = time.perf_counter() - began
            fleet.finish_all(made)
            small.append(time.perf_counter() - began)
            print(
                f"  {batches} batches were created in {created:.2f} s and had ended after "
                f"{small[-1]:.2f} s; one of as many rows in {large[-1]:.2f} s",
                flush=True,
            )
    return [
        compared(
            f"{batches} batches x {_ROWS} rows / 1 batch x {rows} rows",
            statistics.median(small),
            statistics.median(large),
            unit="s",
            goal=1.15,
            sense="at most",
        )
    ]
