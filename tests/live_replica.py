"""A replica without Ray and vLLM: the real door and entrance, and an app that answers as asked."""

import asyncio
import itertools
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from shared.adapter_archive import CONFIG, AdapterLimits
from shared.doors import Door
from shared.openai.row_rules import RowRules
from worker.adapter_shelf import AdapterShelf, LoadError
from worker.engine_results import failure
from worker.engine_seats import Capacity
from worker.entrance import Entrance
from worker.live_calls import LiveCalls, Receive, Send, send_result
from worker.live_door import LiveDoor

#: What a prompt says to be answered with three events, to wait after the first one, to break after
#: it, to break without any, or to be refused.
HELLO, WAIT, BREAK, DIE, REFUSE = "hello", "wait", "break", "die", "refuse"
#: The `lora_alpha` of an adapter that cannot be loaded.
MISFIT = 13
#: The same for an answer of three MiB, and for one that never ends.
LARGE, ENDLESS = "large", "endless"
EVENTS = [
    b'data: {"choices": [{"index": 0, "delta": {"content": "%d"}}]}\n\n' % n for n in range(3)
]
DONE = b"data: [DONE]\n\n"
#: To a call without `stream`.
ANSWER = b'{"choices": [{"index": 0, "message": {"role": "assistant", "content": "012"}}]}'


@dataclass
class App:
    """In vLLM's place: each call has a seat while it runs, as vLLM's core gives it."""

    entrance: Entrance
    #: The requests that came: their bodies and request ids.
    bodies: list[dict[str, Any]] = field(default_factory=list)
    request_ids: list[str] = field(default_factory=list)
    salts: list[str] = field(default_factory=list)
    #: Set it, and calls that wait without `stream` are answered.
    may_end: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        body = json.loads((await receive())["body"])
        self.bodies.append(body)
        self.request_ids.append(dict(scope["headers"])[b"x-request-id"].decode())
        says = body["messages"][-1]["content"] if "messages" in body else HELLO
        if says == REFUSE:
            error = {"message": "Too long.", "type": "BadRequestError", "param": None, "code": 400}
            await send_result(send, failure(400, error))
            return
        seat = await self.entrance.seat(self.request_ids[-1], prompt_tokens=5, max_tokens=5)
        assert seat is not None
        self.salts.append(seat.row.work.cache_salt)
        if says == LARGE:
            await send_result(send, (200, json.dumps("x" * 3 * 1024 * 1024).encode()))
            return
        if says in (HELLO, WAIT) and not body.get("stream"):
            if says == HELLO or not await self._is_gone(receive):
                await send_result(send, (200, ANSWER))
            return
        headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        if says == DIE:
            raise ConnectionAbortedError
        for event in itertools.repeat(EVENTS[0]) if says == ENDLESS else EVENTS:
            await send({"type": "http.response.body", "body": event, "more_body": True})
            if says == BREAK:
                raise ConnectionAbortedError
            if says == WAIT:
                while (await receive())["type"] != "http.disconnect":
                    pass
                return
        await send({"type": "http.response.body", "body": DONE})

    async def _is_gone(self, receive: Receive) -> bool:
        """Wait until the client has gone, or calls may end."""
        going, ending = asyncio.ensure_future(receive()), asyncio.ensure_future(self.may_end.wait())
        done, _ = await asyncio.wait([going, ending], return_when=asyncio.FIRST_COMPLETED)
        for task in (going, ending):
            task.cancel()
        return going in done


class _Loader:
    """In vLLM's place: takes every adapter of the rank 8 but those with another scale."""

    async def load(self, name: str, folder: Path) -> None:
        assert name
        if json.loads((folder / CONFIG).read_text())["lora_alpha"] == MISFIT:
            raise LoadError("it does not fit")

    async def unload(self, name: str) -> None:
        assert name


@dataclass
class Replica:
    """One replica that takes live calls."""

    door: Door
    app: App
    entrance: Entrance
    calls: LiveCalls
    client: SimpleNamespace


@asynccontextmanager
async def a_replica(name: str = "r1") -> AsyncIterator[Replica]:
    """A replica in this event loop."""
    entrance = _an_entrance()
    app, client = App(entrance), SimpleNamespace(errored=False)
    shelf = AdapterShelf(_Loader(), AdapterLimits(bytes=1024 * 1024, rank=8), kept=1)
    calls = LiveCalls(client, app, entrance, RowRules(), _refused, shelf=shelf)
    door = LiveDoor(calls)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    opened = await door.open(name, "127.0.0.1", (port, 65_535))
    try:
        yield Replica(opened, app, entrance, calls, client)
    finally:
        await asyncio.shield(door.close())
        await shelf.forget([name for _, name in shelf.names])


def a_door() -> LiveDoor:
    """A door that nobody goes through."""
    entrance = _an_entrance()
    client = SimpleNamespace(errored=False)
    return LiveDoor(LiveCalls(client, App(entrance), entrance, RowRules(), _refused))


def _an_entrance() -> Entrance:
    return Entrance(Capacity(seats=4, spare_seats=0, spare_kv=0.1, live_seats=2))


async def _refused(*_: object) -> None:
    return None
