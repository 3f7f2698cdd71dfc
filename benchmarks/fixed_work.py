"""How long a piece of work takes in a process of its own: what a machine has left for others.

Five rows of a small batch pass through ten processes. If work that has nothing to do with Batchyard
takes half as long again beside a giant, so does each part of their way.
"""

import json
import multiprocessing
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import NamedTuple

#: Some milliseconds of a quick processor.
_ROUNDS = 120
_PAUSE_SECONDS = 0.05
_PIECE = [{"custom_id": f"row-{number}", "input": "word " * 8} for number in range(16)]


class Taken(NamedTuple):
    """One time that it was done: seconds on the clock, and those a processor was at it."""

    seconds: float
    busy_seconds: float


class FixedWork:
    """What a process does every 50 ms; one user at a time."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def taken(self) -> list[Taken]:
        """What it took each time since this was last asked."""
        self._connection.send(None)
        found: list[Taken] = self._connection.recv()
        return found


@contextmanager
def fixed_work() -> Iterator[FixedWork]:
    """The process, until the end of the block."""
    # A fork of a process with threads may never come to life.
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_repeat, args=(there,), daemon=True)
    process.start()
    there.close()
    try:
        work = FixedWork(here)
        # Until it has begun.
        work.taken()
        yield work
    finally:
        here.close()
        process.join()


def _repeat(connection: Connection) -> None:
    taken: list[Taken] = []
    while True:
        if connection.poll(_PAUSE_SECONDS):
            try:
                connection.recv()
            except EOFError:
                return
            connection.send(taken)
            taken = []
        began, busy = time.perf_counter(), time.thread_time()
        for _ in range(_ROUNDS):
            json.loads(json.dumps(_PIECE))
        taken.append(Taken(time.perf_counter() - began, time.thread_time() - busy))
