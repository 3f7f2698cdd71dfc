"""The simulated engine: `python -m tests.chaos.engine HOST PORT JOURNAL [HANG_SECONDS [DOOR]]`.

With the port DOOR, it takes live calls there.

Stands where Ray Serve and vLLM stand: a process of its own, with rows in it when it dies, or ends
itself because it hangs. As a replica does, it keeps its answers while it lives. It notes each row
that it runs, and the claim under which it was sent; and in a file beside the journal, each row that
it has answered.
"""

import asyncio
import json
import os
import secrets
import sys
import time
from collections import defaultdict
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO, Any

from tests.chaos.live_engine import LiveEngine
from tests.chaos.rows import DEADLY, answer
from worker.answers import Answers
from worker.engine_errors import Result
from worker.progress import Progress

_LIMIT = 64 * 1024 * 1024
#: As the engine's replica keeps answers.
_KEPT_BYTES, _KEPT_SECONDS = 128 * 1024 * 1024, 600.0
#: A request with this text kills the engine, until the file `….mended` beside the journal exists.
KILL = "kill the engine"
#: A request with this text makes the engine hang.
HANG = "hang the engine"
#: What a client sends that wants to know of its live calls.
ASK_LIVE = {"ask": "live"}
#: Its greeting on each connection.
READY = "ready"
#: What it sends instead of results before it ends itself for hanging.
HUNG = "hung"
#: As a model's `hang_seconds` by default.
_HANG_SECONDS = 600.0
_LOOK_SECONDS = 0.2
#: The time that a chunk of rows takes, so that there are always some in the engine. A file beside
#: the journal may hold another number.
_SECONDS = 0.05


class MadeUpEngine:
    """The engines of all models: one dies or hangs without the others."""

    def __init__(self, journal: IO[str], answers: IO[str], hang_seconds: float) -> None:
        self._journal = journal
        self._answered = answers
        #: By model.
        self._answers: defaultdict[str, Answers[Any]] = defaultdict(
            lambda: Answers(max_bytes=_KEPT_BYTES, seconds=_KEPT_SECONDS)
        )
        self._mended = Path(f"{journal.name}.mended")
        self._pace = Path(f"{journal.name}.seconds")
        self._progress = Progress(hang_seconds)
        self._hangs = False
        #: The rows in it, by client and model.
        self._inside: dict[asyncio.StreamWriter, str] = {}
        self.live = LiveEngine()

    async def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one client, call by call."""
        with suppress(OSError, asyncio.IncompleteReadError):
            # A client that reads this has reached the engine, not a proxy in front of a dead one.
            writer.write(json.dumps(READY).encode() + b"\n")
            while line := await reader.readline():
                call = json.loads(line)
                if call == ASK_LIVE:
                    writer.write(json.dumps(self.live.tell()).encode() + b"\n")
                    continue
                requests = [json.loads(one) for one in call["lines"]]
                self._inside[writer] = model = requests[0]["body"]["model"]
                found = await asyncio.gather(
                    *(
                        self._answers[model].ask(
                            (call["claim"]["batch"], one),
                            partial(self._run, call["claim"], request),
                        )
                        for one, request in zip(call["lines"], requests, strict=True)
                    )
                )
                if self._hangs or self._inside.pop(writer, None) is None:
                    return
                self._progress.note()
                results = [[status, body.decode()] for status, body, *_ in found]
                writer.write(json.dumps(results).encode() + b"\n")
                await writer.drain()
                _note(self._answered, call["claim"], requests)
        writer.close()

    async def _run(self, claim: dict[str, Any], request: dict[str, Any]) -> Result:
        # Before it is answered: what was answered is never missing.
        _note(self._journal, claim, [request])
        self._suffer(request)
        await asyncio.sleep(self._seconds())
        said = answer(request["body"])
        return said.status, json.dumps(said.body).encode()

    async def watch(self) -> None:
        """End the process when it hangs, after a message to the clients whose rows are in it."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            if self._progress.has_stalled(len(self._inside)):
                break
        for writer in self._inside:
            with suppress(OSError):
                writer.write(json.dumps(HUNG).encode() + b"\n")
                await writer.drain()
        os._exit(1)

    def _seconds(self) -> float:
        try:
            return float(self._pace.read_text())
        except FileNotFoundError:
            return _SECONDS

    def _suffer(self, request: dict[str, Any]) -> None:
        """What the request does to the engine."""
        model, verb = request["body"]["model"], request["body"]["messages"][-1]["content"]
        if verb not in {KILL, HANG, DEADLY} or self._mended.exists():
            return
        if verb == KILL:
            os._exit(1)
        self._hangs |= verb == HANG
        if verb == DEADLY:
            self._answers.pop(model, None)
            for writer in [one for one, its in self._inside.items() if its == model]:
                del self._inside[writer]
                writer.transport.abort()


def answers_beside(journal: Path) -> Path:
    """Where the engine notes what it has answered."""
    return journal.with_name(f"{journal.stem}-answers.jsonl")


def _note(journal: IO[str], claim: dict[str, Any], requests: list[dict[str, Any]]) -> None:
    rows = [request["custom_id"] for request in requests]
    journal.write(json.dumps({"at": time.time(), **claim, "rows": rows}) + "\n")
    journal.flush()


async def serve(
    host: str, port: int, journal: Path, hang_seconds: float, door: int | None = None
) -> None:
    """Answer until killed."""
    # Never closed: the process is always killed.
    notes, answers = (path.open("a") for path in (journal, answers_beside(journal)))
    engine = MadeUpEngine(notes, answers, hang_seconds)
    if door is not None:
        await engine.live.open(secrets.token_hex(4), host, door)
    server = await asyncio.start_server(engine.take, host, port, limit=_LIMIT)
    await asyncio.gather(server.serve_forever(), engine.watch())


if __name__ == "__main__":
    seconds = float(sys.argv[4]) if sys.argv[4:] else _HANG_SECONDS
    port = int(sys.argv[5]) if sys.argv[5:] else None
    asyncio.run(serve(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), seconds, port))
