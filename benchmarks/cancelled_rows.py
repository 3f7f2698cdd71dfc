"""`python -m benchmarks.cancelled_rows`: how soon a cancellation of rows that never ran is over.

The input of a batch of `--rows` lies in a real S3, and none of them has run. It says the seconds
from the cancellation to the batch's end, with the lines of all rows in its error file.
"""

import argparse
import asyncio
import sys
import time
from collections.abc import AsyncIterator

from benchmarks.finaliser_memory import MEBIBYTE, ROWS_A_PART, own_servers, plan
from dispatcher.finaliser import Finaliser
from shared import ids
from shared.ledger.commits import cancel
from shared.lifecycle import Status
from shared.state import State
from shared.storage import Storage

#: A chat of a short prompt.
_ROW_BYTES = 400
#: From the cancellation to the end.
_GOAL_SECONDS = 3.0


def _line(row: int) -> bytes:
    head = f'{{"custom_id":"row-{row}","url":"/v1/chat/completions","body":{{"x":"'.encode()
    return head + b"x" * (_ROW_BYTES - len(head) - 4) + b'"}}\n'


async def _lines(parts: int) -> AsyncIterator[bytes]:
    for first in range(0, parts * ROWS_A_PART, ROWS_A_PART):
        yield b"".join(map(_line, range(first, first + ROWS_A_PART)))


async def _seconds(redis_url: str, where: tuple[str, ...], parts: int) -> float:
    state, storage = State(redis_url), Storage(*where)
    await storage.prepare()
    batch_id = ids.batch_id("acme", "cancelled")
    input_ = await storage.upload("input.jsonl", _lines(parts))
    await plan(state, storage, batch_id, parts, input_=input_)
    finaliser = Finaliser(state, storage, output_seconds=60)
    began = time.perf_counter()
    await cancel(state, storage, batch_id)
    await finaliser.finish(batch_id)
    seconds = time.perf_counter() - began
    record = await state.batches.get(batch_id)
    assert record.status is Status.CANCELLED
    await state.close()
    storage.close()
    return seconds


def main() -> int:
    """Exit code 1 when it takes longer than 3 seconds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=500_000)
    rows = parser.parse_args().rows
    with own_servers("cancelled-rows") as (redis_url, own):
        seconds = asyncio.run(_seconds(redis_url, own, max(1, rows // ROWS_A_PART)))
    size = rows * _ROW_BYTES / MEBIBYTE
    print(f"{rows:,} rows in {size:.0f} MiB: cancelled in {seconds:.2f} s")
    return 0 if seconds <= _GOAL_SECONDS else 1


if __name__ == "__main__":
    sys.exit(main())
