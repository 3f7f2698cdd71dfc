"""The made-up engine: `python -m tests.chaos.engine HOST PORT JOURNAL`.

Stands where Ray Serve and vLLM stand: a process of its own, with rows in it when it dies. It notes
each row that it runs, and the claim under which it was sent.
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

_LIMIT = 64 * 1024 * 1024
#: What a request says for the engine to die of it, until it is mended: a file beside the journal.
KILL = "kill the engine"
#: For a chunk of rows, so that there are always some in it.
_SECONDS = 0.05


async def serve(host: str, port: int, journal: IO[str]) -> None:
    """Answer until killed."""
    mended = Path(f"{journal.name}.mended")

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            while line := await reader.readline():
                call = json.loads(line)
                requests = [json.loads(one) for one in call["lines"]]
                rows = [request["custom_id"] for request in requests]
                journal.write(json.dumps({"at": time.time(), **call["claim"], "rows": rows}) + "\n")
                # Written before it is answered: what was answered is never missing.
                journal.flush()
                verbs = {request["body"]["messages"][-1]["content"] for request in requests}
                if KILL in verbs and not mended.exists():  # noqa: ASYNC240  # it costs nothing
                    os._exit(1)
                await asyncio.sleep(_SECONDS)
                results = [
                    [said.status, json.dumps(said.body)]
                    for said in (answer(request["body"]) for request in requests)
                ]
                writer.write(json.dumps(results).encode() + b"\n")
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(take, host, port, limit=_LIMIT)
    await server.serve_forever()


if __name__ == "__main__":
    with Path(sys.argv[3]).open("a") as file:
        asyncio.run(serve(sys.argv[1], int(sys.argv[2]), file))
