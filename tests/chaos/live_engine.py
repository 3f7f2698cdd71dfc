"""The live door of the simulated engine: the real door and seats, and answers that are made up."""

import asyncio
import itertools
import json
from types import SimpleNamespace
from typing import Any

import msgspec

from shared.doors import Door
from shared.openai.row_rules import RowRules
from tests.chaos.rows import answer
from worker.engine_seats import Capacity, StepOutput
from worker.entrance import Entrance
from worker.live_calls import LiveCalls, Receive, Send, send_result
from worker.live_door import LiveDoor

#: An answer comes in pieces of so many characters, each after so many seconds.
_PIECE, _SECONDS = 8, 0.05
_CAPACITY = Capacity(seats=64, spare_seats=0, spare_kv=0.0, live_seats=64)
_OK = 200


class LiveEngine:
    """Where vLLM's app and its core stand, for the live calls of all models."""

    def __init__(self) -> None:
        self._entrance = Entrance(_CAPACITY)
        client = SimpleNamespace(errored=False)
        self._calls = LiveCalls(client, self._answer, self._entrance, RowRules(), _refuse_nothing)
        self._numbers = itertools.count()
        self._door: Door | None = None

    async def open(self, replica: str, host: str, port: int) -> None:
        """Take calls."""
        self._door = await LiveDoor(self._calls).open(replica, host, (port, port))

    def tell(self) -> dict[str, Any]:
        """Where its door is, and what is inside."""
        door = None if self._door is None else msgspec.structs.asdict(self._door)
        return {"door": door, "seats": self._entrance.seated, "calls": self._calls.running}

    async def _answer(self, _: Any, receive: Receive, send: Send) -> None:
        body = json.loads((await receive())["body"])
        working = asyncio.ensure_future(self._work(body, send))
        going = asyncio.ensure_future(receive())
        try:
            await asyncio.wait([working, going], return_when=asyncio.FIRST_COMPLETED)
        finally:
            going.cancel()
            working.cancel()
            await asyncio.wait([working])
        if not working.cancelled():
            working.result()

    async def _work(self, body: dict[str, Any], send: Send) -> None:
        said = answer(body)
        if said.status != _OK:
            await send_result(send, (said.status, json.dumps(said.body).encode()))
            return
        sequence = str(next(self._numbers))
        await self._entrance.seat(sequence, prompt_tokens=5, max_tokens=5)
        if body.get("stream"):
            await _stream(said.body["choices"][0]["message"]["content"], send)
        else:
            await asyncio.sleep(_SECONDS)
            await send_result(send, (said.status, json.dumps(said.body).encode()))
        self._entrance.note(None, [StepOutput(sequence, 1, is_last=True)])


async def _stream(text: str, send: Send) -> None:
    headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
    await send({"type": "http.response.start", "status": _OK, "headers": headers})
    for start in range(0, len(text), _PIECE):
        delta = {"content": text[start : start + _PIECE]}
        event = {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta}]}
        data = b"data: %s\n\n" % json.dumps(event).encode()
        await send({"type": "http.response.body", "body": data, "more_body": True})
        await asyncio.sleep(_SECONDS)
    await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})


async def _refuse_nothing(*_: object) -> None:
    return None
