"""An outsider at work: batches over HTTP and over RabbitMQ, as docs/bus.md has it."""

import asyncio
import json
import random
import secrets
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, NamedTuple

import aio_pika
import httpx
from aio_pika.abc import AbstractIncomingMessage
from aio_pika.exceptions import AMQPError

from tests.outsider.notes import Notes, Seen

FINAL = {"completed", "failed", "expired", "cancelled"}
_LOST = (AMQPError, OSError, RuntimeError, TimeoutError)
_CALL_SECONDS = 15.0
_PAUSE_SECONDS = 0.3
_MANY_REQUESTS, _SERVER_ERROR = 429, 500
#: The longest time in which nothing moves, after everything was healed.
_STALL_SECONDS = 300.0

#: Makes the request number `row` of the batch `key`: a line of an input file.
Maker = Callable[[str, int], dict[str, Any]]


class Door(NamedTuple):
    """Where the fleet is, and who the outsider is there."""

    #: Several gateways, of which any one may be away.
    gateways: Sequence[str]
    amqp_url: str
    tenant: str
    key: str
    #: Another tenant's key, with which nothing of this one may be seen.
    strangers_key: str


class Outsider:
    """Creates batches one after the other, several at a time, and writes down what happens."""

    def __init__(self, door: Door, make: Maker, *, seed: int) -> None:
        self.notes = Notes()
        self._door = door
        self._make = make
        self._dice = random.Random(seed)
        self._run = f"outsider-{secrets.token_hex(4)}"
        self._http: list[httpx.AsyncClient] = []
        self._replies: dict[str, asyncio.Future[dict[str, Any]]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self.stopping = asyncio.Event()
        self.may_begin = asyncio.Event()
        self.may_begin.set()
        self.progress = 0

    @asynccontextmanager
    async def at_work(self, at_once: int) -> AsyncIterator[None]:
        """At work until the block ends, and then until everything has ended."""
        for url in self._door.gateways:
            headers = {"authorization": f"Bearer {self._door.key}"}
            self._http.append(
                httpx.AsyncClient(base_url=url, headers=headers, timeout=_CALL_SECONDS)
            )
        listening = asyncio.Event()
        self._tasks.append(asyncio.create_task(self._keep_listening(listening)))
        try:
            await listening.wait()
            lives = [asyncio.create_task(self._live()) for _ in range(at_once)]
            yield
            self.stopping.set()
            self.may_begin.set()
            await self._wait(lives)
            async with asyncio.timeout(_STALL_SECONDS):
                await self._look_around()
        finally:
            # A wait of a library that ends in the same moment may swallow a cancellation.
            while running := [task for task in self._tasks if not task.done()]:
                for task in running:
                    task.cancel()
                await asyncio.wait(running, timeout=_CALL_SECONDS)
            for http in self._http:
                await http.aclose()

    async def _wait(self, lives: "Sequence[asyncio.Task[None]]") -> None:
        """Until all batches have ended and their events are here, or nothing moves any more."""
        loop = asyncio.get_running_loop()
        before, since = self.progress, loop.time()
        while loop.time() - since < _STALL_SECONDS:
            if all(life.done() for life in lives) and not self._missing():
                break
            await asyncio.sleep(_PAUSE_SECONDS)
            if self.progress != before:
                before, since = self.progress, loop.time()
        for life in lives:
            life.cancel()
        for end in await asyncio.gather(*lives, return_exceptions=True):
            if isinstance(end, Exception):
                self.notes.surprises.append(f"{type(end).__name__}: {end}")

    def _missing(self) -> set[str]:
        """Batches that have ended and whose last event is not here."""
        ended = {batch for seen in self.notes.batches if seen.end for batch in seen.ids}
        return ended - {
            event["data"]["id"]
            for event in self.notes.events
            if event["type"].removeprefix("batch.") in FINAL
        }

    async def _live(self) -> None:
        while True:
            await self.may_begin.wait()
            if self.stopping.is_set():
                return
            number = len(self.notes.batches)
            door = "bus" if number % 2 else "http"
            key = f"{self._run}-{number}"
            lines = [self._make(key, row) for row in range(self._dice.randint(1, 40))]
            rows = [(line["custom_id"], line["body"]) for line in lines]
            seen = Seen(key, rows, door)
            self.notes.batches.append(seen)
            if door == "bus":
                await self._submit(seen, lines)
            else:
                await self._create(seen, lines)
            if number % 5 == 0:
                answer = await self._call("POST", f"/v1/batches/{_id(seen)}/cancel")
                seen.cancel_status = answer.status_code
            await self._follow(seen)

    async def _create(self, seen: Seen, lines: Sequence[Mapping[str, Any]]) -> None:
        body = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
        files = {"file": ("in.jsonl", body)}
        uploaded = await self._call("POST", "/v1/files", files=files, data={"purpose": "batch"})
        asked = {
            "input_file_id": uploaded.json()["id"],
            "endpoint": "/v1/chat/completions",
            "completion_window": "24h",
        }
        # A client that has lost the answer asks again.
        for _ in range(self._dice.randint(1, 2)):
            headers = {"idempotency-key": seen.key}
            answer = await self._call("POST", "/v1/batches", json=asked, headers=headers)
            seen.ids.add(answer.json()["id"])

    async def _submit(self, seen: Seen, lines: Sequence[Mapping[str, Any]]) -> None:
        body = {
            "schema": "batch.submit/1",
            "endpoint": "/v1/chat/completions",
            "input": {"kind": "inline", "requests": lines},
        }
        for _ in range(self._dice.randint(1, 2)):
            while True:
                reply = self._replies[seen.key] = asyncio.get_running_loop().create_future()
                with suppress(*_LOST):
                    await self._publish(seen.key, body)
                    answer = await asyncio.wait_for(reply, 4 * _CALL_SECONDS)
                    break
                await asyncio.sleep(_PAUSE_SECONDS)
            if answer["status"] == "accepted":
                seen.ids.add(answer["batch"]["id"])
            else:
                self.notes.surprises.append(f"a message was refused: {answer['error']['code']}")

    async def _publish(self, key: str, body: Mapping[str, Any]) -> None:
        tenant = self._door.tenant
        message = aio_pika.Message(
            json.dumps(body).encode(),
            message_id=key,
            type="batch.submit.v1",
            content_type="application/json",
            delivery_mode=2,
            user_id=tenant,
            reply_to=f"reply.{tenant}.main",
        )
        async with asyncio.timeout(_CALL_SECONDS):
            connection = await aio_pika.connect(self._door.amqp_url, timeout=5)
            async with connection:
                channel = await connection.channel(publisher_confirms=True, on_return_raises=True)
                exchange = await channel.get_exchange("batch.submit", ensure=False)
                await exchange.publish(message, f"submit.v1.{tenant}", mandatory=True)

    async def _follow(self, seen: Seen) -> None:
        batch_id = _id(seen)
        while True:
            batch = (await self._call("GET", f"/v1/batches/{batch_id}")).json()
            seen.statuses.append(batch["status"])
            if batch["status"] in FINAL:
                break
            await asyncio.sleep(self._dice.uniform(0.2, 1.0))
        for kind in ("output", "error"):
            if file_id := batch[f"{kind}_file_id"]:
                content = await self._call("GET", f"/v1/files/{file_id}/content")
                seen.files[kind] = content.content
                seen.file_objects[kind] = (await self._call("GET", f"/v1/files/{file_id}")).json()
        stranger = {"authorization": f"Bearer {self._door.strangers_key}"}
        answer = await self._call("GET", f"/v1/batches/{batch_id}", headers=stranger)
        seen.strangers_status = answer.status_code
        # Last, because it says that all of this was seen.
        seen.end = batch
        self.progress += 1

    async def _look_around(self) -> None:
        after: dict[str, str] = {}
        while True:
            answer = await self._call("GET", "/v1/batches", params={"limit": "100", **after})
            page = answer.json()
            self.notes.listed += [batch["id"] for batch in page["data"]]
            if not page["has_more"]:
                return
            after = {"after": page["data"][-1]["id"]}

    async def _call(self, method: str, path: str, **asked: Any) -> httpx.Response:
        """The first clear answer of any gateway."""
        number = self._dice.randrange(len(self._http))
        while True:
            number = (number + 1) % len(self._http)
            with suppress(httpx.HTTPError):
                answer = await self._http[number].request(method, path, **asked)
                if answer.status_code < _SERVER_ERROR and answer.status_code != _MANY_REQUESTS:
                    return answer
            await asyncio.sleep(_PAUSE_SECONDS)

    # A subscriber as docs/bus-events.md has it: on the queue that a tenant is given, and with an
    # ack after its own commit.

    async def _keep_listening(self, listening: asyncio.Event) -> None:
        while True:
            with suppress(*_LOST):
                await self._listen(listening)
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _listen(self, listening: asyncio.Event) -> None:
        lost, tenant = asyncio.Event(), self._door.tenant
        connection = await aio_pika.connect(self._door.amqp_url + "?heartbeat=10", timeout=10)
        async with connection:
            connection.close_callbacks.add(lambda *_: lost.set())
            channel = await connection.channel()
            channel.close_callbacks.add(lambda *_: lost.set())
            await channel.set_qos(prefetch_count=100, timeout=_CALL_SECONDS)
            events = await channel.get_queue(f"sub.{tenant}.main")
            await events.consume(self._take_event, timeout=_CALL_SECONDS)
            replies = await channel.get_queue(f"reply.{tenant}.main")
            await replies.consume(self._take_reply, timeout=_CALL_SECONDS)
            listening.set()
            while not lost.is_set() and await _is_heard(channel, events.name):
                with suppress(TimeoutError):
                    await asyncio.wait_for(lost.wait(), _CALL_SECONDS)

    async def _take_event(self, message: AbstractIncomingMessage) -> None:
        self.notes.events.append(json.loads(message.body))
        self.progress += 1
        with suppress(*_LOST):
            await message.ack()

    async def _take_reply(self, message: AbstractIncomingMessage) -> None:
        waiting = self._replies.get(message.correlation_id or "")
        if waiting is not None and not waiting.done():
            waiting.set_result(json.loads(message.body))
        with suppress(*_LOST):
            await message.ack()


async def _is_heard(channel: Any, queue: str) -> bool:
    """Whether the queue has a consumer: a broker may cancel one and keep its channel."""
    found = await channel.declare_queue(queue, passive=True, timeout=_CALL_SECONDS)
    return bool(found.declaration_result.consumer_count)


def _id(seen: Seen) -> str:
    return min(seen.ids)
