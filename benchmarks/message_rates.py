"""Batches of one row by message, so many at a time for a while: how many end."""

import asyncio
import itertools
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import aio_pika
from aio_pika.abc import AbstractIncomingMessage

from benchmarks.bench_yard import BenchYard
from benchmarks.rows import CHAT, URLS
from shared.bus import topology
from shared.bus.messages import SUBMIT

_AT_ONCE = 200
#: An event may be told again, but not after so many others.
_REMEMBERED = 100_000
#: How long a batch may take before something is wrong.
_PATIENCE_SECONDS = 120.0


async def submitted_for(yard: BenchYard, seconds: float) -> tuple[int, float]:
    """How many batches ended, and in which time; no more are submitted after `seconds`."""
    async with _opened(yard) as sender:
        began = time.monotonic()
        while time.monotonic() - began < seconds:
            await sender.submit()
        await sender.wait_for_all()
        return sender.ended, time.monotonic() - began


class _Sender:
    """A tenant that has some batches under way at any time."""

    def __init__(self, exchange: aio_pika.abc.AbstractExchange, tenant: str) -> None:
        self._exchange = exchange
        self._tenant = tenant
        self._places = asyncio.Semaphore(_AT_ONCE)
        self._seen: dict[str, None] = {}
        self._publishing: set[asyncio.Task[None]] = set()
        # Ids of messages are compared with those of earlier calls, too.
        self._names = (f"steady-{time.time_ns()}-{number}" for number in itertools.count())
        self.ended = 0

    async def submit(self) -> None:
        """Send a batch as soon as fewer than the most are under way."""
        await asyncio.wait_for(self._places.acquire(), _PATIENCE_SECONDS)
        task = asyncio.create_task(self._publish(next(self._names)))
        self._publishing.add(task)
        task.add_done_callback(self._publishing.discard)

    async def wait_for_all(self) -> None:
        for _ in range(_AT_ONCE):
            await asyncio.wait_for(self._places.acquire(), _PATIENCE_SECONDS)

    async def hear(self, message: AbstractIncomingMessage) -> None:
        """Take an event."""
        await message.ack()
        if message.type not in ("batch.completed", "batch.failed"):
            return
        batch = json.loads(message.body)["data"]
        if batch["id"] in self._seen:
            return
        if batch["status"] != "completed" or batch["request_counts"]["completed"] != 1:
            raise RuntimeError(f"The batch is {batch['status']}.")
        self._seen[batch["id"]] = None
        if len(self._seen) > _REMEMBERED:
            del self._seen[next(iter(self._seen))]
        self.ended += 1
        self._places.release()

    async def _publish(self, name: str) -> None:
        message = aio_pika.Message(
            _BODY,
            message_id=name,
            type=SUBMIT,
            user_id=self._tenant,
            content_type="application/json",
            delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
        )
        await self._exchange.publish(message, topology.submit_key(self._tenant), mandatory=True)


@asynccontextmanager
async def _opened(yard: BenchYard) -> AsyncIterator[_Sender]:
    tenant = urlsplit(yard.tenant_amqp_url).username or ""
    async with await aio_pika.connect(yard.tenant_amqp_url) as connection:
        channel = await connection.channel(publisher_confirms=True)
        listening = await connection.channel(publisher_confirms=False)
        await listening.set_qos(prefetch_count=_AT_ONCE)
        exchange = await channel.get_exchange(topology.SUBMIT_EXCHANGE, ensure=False)
        sender = _Sender(exchange, tenant)
        events = await listening.get_queue(f"sub.{tenant}.main")
        await events.consume(sender.hear)
        yield sender


_BODY = json.dumps(
    {
        "schema": "batch.submit/1",
        "endpoint": URLS[CHAT],
        "input": {
            "kind": "inline",
            "requests": [
                {
                    "custom_id": "row-0",
                    "method": "POST",
                    "url": URLS[CHAT],
                    "body": {
                        "model": "m",
                        "messages": [{"role": "user", "content": "0 the quick brown fox"}],
                        "max_tokens": 4,
                    },
                }
            ],
        },
    }
).encode()
