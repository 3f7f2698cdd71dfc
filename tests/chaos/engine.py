"""The made-up engine: `python -m tests.chaos.engine HOST PORT JOURNAL [HANG_SECONDS]`.

Stands where Ray Serve and vLLM stand: a process of its own, with rows in it when it dies, or ends
itself because it hangs. It notes each row that it runs, and the claim under which it was sent.
"""

import asyncio
import json
import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import IO

from tests.chaos.rows import answer
from worker.progress import Progress

_LIMIT = 64 * 1024 * 1024
#: What a request says for the engine to die of it, until it is mended: a file beside the journal.
KILL = "kill the engine"
#: The same for it to answer nobody any more.
HANG = "hang the engine"
#: What it says to whoever connects.
READY = "ready"
#: What it says instead of results, before it ends itself for that.
HUNG = "hung"
#: As a model's `hang_seconds` by default.
_HANG_SECONDS = 600.0
_LOOK_SECONDS = 0.2
#: For a chunk of rows, so that there are always some in it.
_SECONDS = 0.05


async def serve(host: str, port: int, journal: IO[str], hang_seconds: float) -> None:
    """Answer until killed."""
    mended = Path(f"{journal.name}.mended")
    progress = Progress(hang_seconds)
    waiting: set[asyncio.StreamWriter] = set()
    hangs = False

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal hangs
        with suppress(OSError, asyncio.IncompleteReadError):
            # Whoever reads this has reached the engine, and no proxy before a dead one.
            writer.write(json.dumps(READY).encode() + b"\n")
            while line := await reader.readline():
                call = json.loads(line)
                requests = [json.loads(one) for one in call["lines"]]
                rows = [request["custom_id"] for request in requests]
                journal.write(json.dumps({"at": time.time(), **call["claim"], "rows": rows}) + "\n")
                # Written before it is answered: what was answered is never missing.
                journal.flush()
                verbs = {request["body"]["messages"][-1]["content"] for request in requests}
                is_mended = mended.exists()  # noqa: ASYNC240  # it costs nothing
                if KILL in verbs and not is_mended:
                    os._exit(1)
                hangs |= HANG in verbs and not is_mended
                waiting.add(writer)
                await asyncio.sleep(_SECONDS)
                if hangs:
                    return
                waiting.discard(writer)
                progress.note()
                results = [
                    [said.status, json.dumps(said.body)]
                    for said in (answer(request["body"]) for request in requests)
                ]
                writer.write(json.dumps(results).encode() + b"\n")
                await writer.drain()
        writer.close()

    async def watch() -> None:
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            if progress.has_stalled(len(waiting)):
                break
        for writer in waiting:
            with suppress(OSError):
                writer.write(json.dumps(HUNG).encode() + b"\n")
                await writer.drain()
        os._exit(1)

    server = await asyncio.start_server(take, host, port, limit=_LIMIT)
    await asyncio.gather(server.serve_forever(), watch())


if __name__ == "__main__":
    seconds = float(sys.argv[4]) if sys.argv[4:] else _HANG_SECONDS
    with Path(sys.argv[3]).open("a") as file:
        asyncio.run(serve(sys.argv[1], int(sys.argv[2]), file, seconds))
