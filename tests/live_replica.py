"""A replica without Ray and vLLM: the real door and entrance, and an app that answers as asked."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from shared.doors import Door
from shared.openai.row_rules import RowRules
from worker.engine_results import failure
from worker.engine_seats import Capacity
from worker.entrance import Entrance
from worker.live_calls import LiveCalls, Receive, Send, send_result
from worker.live_door import LiveDoor

#: What a prompt says to be answered with three events, to wait after the first one, to break after
#: it, to break without any, or to be refused.
HELLO, WAIT, BREAK, DIE, REFUSE = "hello", "wait", "break", "die", "refuse"
EVENTS = [
    b'data: {"choices": [{"index": 0, "delta": {"content": "%d"}}]}\n\n' % n for n in range(3)
]
DONE = b"data: [DONE]\n\n"


@dataclass
class App:
    """In vLLM's place: each call has a seat while it runs, as vLLM's core gives it."""

    entrance: Entrance
    #: The requests that came: their bodies and request ids.
    bodies: list[dict[str, Any]] = field(default_factory=list)
    request_ids: list[str] = field(default_factory=list)
    salts: list[str] = field(default_factory=list)

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        body = json.loads((await receive())["body"])
        self.bodies.append(body)
        self.request_ids.append(dict(scope["headers"])[b"x-request-id"].decode())
        says = body["messages"][-1]["content"]
        if says == REFUSE:
            error = {"message": "Too long.", "type": "BadRequestError", "param": None, "code": 400}
            await send_result(send, failure(400, error))
            return
        row = await self.entrance.seat(self.request_ids[-1], prompt_tokens=5, max_tokens=5)
        assert row is not None
        self.salts.append(row.work.cache_salt)
        headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        if says == DIE:
            raise ConnectionAbortedError
        for event in EVENTS:
            await send({"type": "http.response.body", "body": event, "more_body": True})
            if says == BREAK:
                raise ConnectionAbortedError
            if says == WAIT:
                while (await receive())["type"] != "http.disconnect":
                    pass
                return
        await send({"type": "http.response.body", "body": DONE})


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
    entrance = Entrance(Capacity(seats=4, spare_seats=0, spare_kv=0.1, live_seats=2))
    app, client = App(entrance), SimpleNamespace(errored=False)

    async def refused(*_: object) -> None:
        return None

    calls = LiveCalls(client, app, entrance, RowRules(), refused)
    door = LiveDoor(calls)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    opened = await door.open(name, "127.0.0.1", (port, 65_535))
    try:
        yield Replica(opened, app, entrance, calls, client)
    finally:
        await asyncio.shield(door.close())
