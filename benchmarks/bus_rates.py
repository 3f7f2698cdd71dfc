"""The cost of the bus: messages accepted per second, against the same broker without Batchyard.

Also a flood of messages: its effect on the dispatcher's memory and the gateway's latency.
"""

import asyncio
import json
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import aio_pika
import httpx
import psutil
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage

from benchmarks.bench_yard import BenchYard, running_yard
from benchmarks.figures import Figure, bounded, compared
from benchmarks.rows import CHAT, URLS, lines
from dispatcher.settings import DispatcherSettings
from shared.bus import topology
from shared.bus.messages import SUBMIT
from shared.lifecycle import Status
from shared.state import State

_MODEL = "m"
_MEBIBYTE = 1024 * 1024
#: Messages in flight of a publisher and of a consumer: the same on both sides.
_IN_FLIGHT = 200
_PREFETCH = DispatcherSettings.model_fields["messages_in_hand"].default
_BARE_MESSAGES = 4_000
_MESSAGES = 800
_FLOOD = 10_000
_GENTLE_MEBIBYTES = 96
_CALLS_BEFORE = 300
_CALL_PAUSE_SECONDS = 0.02


def bus_rates(*, turns: int) -> list[Figure]:
    """Accepted messages per second, in turns with the bare broker."""
    bare: list[_Rate] = []
    answered: list[_Rate] = []
    accepted: list[_Rate] = []

    async def measure(yard: BenchYard, door: _Door, state: State) -> None:
        dispatcher = psutil.Process(yard.pids["dispatcher"])
        await door.submit(_MESSAGES // 4)
        for _ in range(turns):
            await _planned(state)
            bare.append(await _bare_rate(yard))
            answered.append(await _bare_rate(yard, answers=True))
            before = sum(dispatcher.cpu_times()[:2])
            per_second = await door.submit(_MESSAGES)
            spent = sum(dispatcher.cpu_times()[:2]) - before
            accepted.append(_Rate(per_second, 1000 * spent / _MESSAGES))

    _with_yard(measure)
    ours, broker, answering = (
        _Rate(*(statistics.median(column) for column in zip(*rates, strict=True)))
        for rates in (accepted, bare, answered)
    )
    return [
        compared(
            "messages/s accepted / bare publish, confirm, consume, ack",
            ours.per_second,
            broker.per_second,
            unit="1/s",
            goal=0.35,
            sense="at least",
        ),
        bounded(
            "messages/s accepted (baseline: the same messages without Batchyard: each consumed, "
            "answered through a queue, and announced by two events)",
            ours.per_second,
            answering.per_second,
            unit="1/s",
            goal=None,
        ),
        bounded(
            "CPU time of the dispatcher for an accepted message (baseline: bare publisher and "
            "consumer)",
            ours.cpu,
            broker.cpu,
            unit="ms",
            goal=None,
        ),
    ]


def bus_flood() -> list[Figure]:
    """The effect of many messages at once on the dispatcher's memory and the gateway's latency."""
    figures: list[Figure] = []

    async def measure(yard: BenchYard, door: _Door, state: State) -> None:
        await door.submit(_MESSAGES)
        await _planned(state)
        figures.extend(await _flood(yard, door))

    _with_yard(measure)
    return figures


class _Rate(NamedTuple):
    """Messages per second, and the consumer's CPU time for one, in milliseconds."""

    per_second: float
    cpu: float


def _with_yard(measure: Callable[[BenchYard, "_Door", State], Awaitable[None]]) -> None:
    async def run(yard: BenchYard) -> None:
        state = State(yard.redis_url)
        async with _Door.opened(yard) as door:
            await measure(yard, door, state)
        await state.close()

    with tempfile.TemporaryDirectory(prefix="batchyard-bus-") as folder:
        names = ("gateway", "dispatcher")
        with running_yard(Path(folder), names, model=_MODEL) as yard:
            asyncio.run(run(yard))


class _Door:
    """The tenant: it publishes batches, and counts the accepted ones."""

    def __init__(self, channel: AbstractChannel, tenant: str, reply_to: str) -> None:
        self._channel = channel
        self._tenant = tenant
        self._reply_to = reply_to
        self._accepted = 0
        self._sent = 0
        self._heard = asyncio.Event()

    @classmethod
    @asynccontextmanager
    async def opened(cls, yard: BenchYard) -> AsyncIterator["_Door"]:
        tenant = urlsplit(yard.tenant_amqp_url).username or ""
        async with await aio_pika.connect(yard.tenant_amqp_url) as connection:
            channel = await connection.channel(publisher_confirms=True)
            listening = await connection.channel(publisher_confirms=False)
            await listening.set_qos(prefetch_count=_IN_FLIGHT)
            replies = await listening.get_queue(f"reply.{tenant}.main")
            door = cls(channel, tenant, replies.name)
            await replies.consume(door._hear)
            yield door

    async def submit(self, count: int) -> float:
        """Publish this many batches; returns how many were accepted per second."""
        exchange = await self._channel.get_exchange(topology.SUBMIT_EXCHANGE, ensure=False)
        goal = self._accepted + count

        def make() -> aio_pika.Message:
            self._sent += 1
            return aio_pika.Message(
                _BODY,
                message_id=f"bench-{self._sent}",
                type=SUBMIT,
                user_id=self._tenant,
                content_type="application/json",
                delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
                reply_to=self._reply_to,
            )

        began = time.perf_counter()
        await _publish(exchange, topology.submit_key(self._tenant), make, count)
        while self._accepted < goal:
            self._heard.clear()
            await self._heard.wait()
        return count / (time.perf_counter() - began)

    async def _hear(self, message: AbstractIncomingMessage) -> None:
        reply = json.loads(message.body)
        assert reply["status"] == "accepted", reply
        await message.ack()
        self._accepted += 1
        self._heard.set()


async def _bare_rate(yard: BenchYard, *, answers: bool = False) -> _Rate:
    """Messages per second through a queue like ours, each confirmed, consumed and acked.

    With `answers`, each is answered through another such queue and announced by two events first,
    as our own messages are.
    """
    async with (
        await aio_pika.connect(yard.amqp_url) as connection,
        await aio_pika.connect(yard.amqp_url) as answering,
    ):
        channel = await connection.channel(publisher_confirms=True)
        queue, replies = [
            await channel.declare_queue(
                name, durable=True, arguments=dict(topology.SUBMIT_QUEUE_ARGUMENTS)
            )
            for name in ("bench.bare", "bench.replies")
        ]
        taking = await connection.channel(publisher_confirms=False)
        await taking.set_qos(prefetch_count=_PREFETCH)
        telling = await answering.channel(publisher_confirms=True)
        events = await telling.get_exchange(topology.EVENTS_EXCHANGE, ensure=False)
        count, done = 0, asyncio.Event()

        def make() -> aio_pika.Message:
            return aio_pika.Message(_BODY, delivery_mode=aio_pika.DeliveryMode.PERSISTENT)

        async def count_one(message: AbstractIncomingMessage) -> None:
            nonlocal count
            await message.ack()
            count += 1
            if count == _BARE_MESSAGES:
                done.set()

        async def answer(message: AbstractIncomingMessage) -> None:
            await asyncio.gather(
                telling.default_exchange.publish(make(), replies.name, mandatory=True),
                *(events.publish(make(), "bench.bare", mandatory=False) for _ in range(2)),
            )
            await message.ack()

        await (await taking.get_queue(queue.name)).consume(answer if answers else count_one)
        await (await taking.get_queue(replies.name)).consume(count_one)

        began, cpu_before = time.perf_counter(), time.process_time()
        await _publish(channel.default_exchange, queue.name, make, _BARE_MESSAGES)
        await done.wait()
        return _Rate(
            _BARE_MESSAGES / (time.perf_counter() - began),
            1000 * (time.process_time() - cpu_before) / _BARE_MESSAGES,
        )


async def _flood(yard: BenchYard, door: _Door) -> list[Figure]:
    dispatcher = psutil.Process(yard.pids["dispatcher"])
    before = peak = dispatcher.memory_info().rss
    url = f"{yard.address}/v1/batches?limit=1"
    # Of a process of their own: this one is busy with publishing.
    context = multiprocessing.get_context("spawn")
    with context.Manager() as manager, ProcessPoolExecutor(1, context) as pool:
        is_over = manager.Event()
        call = partial(_call, url, yard.api_key)
        calm = await asyncio.wrap_future(pool.submit(call, _CALLS_BEFORE, None))
        calling = asyncio.wrap_future(pool.submit(call, None, is_over))
        flooding = asyncio.create_task(door.submit(_FLOOD))
        while not flooding.done():
            peak = max(peak, dispatcher.memory_info().rss)
            await asyncio.sleep(0.1)
        is_over.set()
        stormy = await calling
        per_second = await flooding
    return [
        bounded(
            f"a flood of {_FLOOD:,} messages: accepted per second",
            per_second,
            0,
            unit="1/s",
            goal=None,
        ),
        bounded(
            f"a flood of {_FLOOD:,} messages: maximum growth of the dispatcher's memory",
            (peak - before) / _MEBIBYTE,
            before / _MEBIBYTE,
            unit="MiB",
            goal=_GENTLE_MEBIBYTES,
        ),
        compared(
            f"a flood of {_FLOOD:,} messages: p99 of listing by HTTP (baseline: before it)",
            1000 * statistics.quantiles(stormy, n=100)[-1],
            1000 * statistics.quantiles(calm, n=100)[-1],
            unit="ms",
            goal=3,
            sense="at most",
        ),
    ]


async def _publish(
    exchange: Any, key: str, make: Callable[[], aio_pika.Message], count: int
) -> None:
    """Publish this many messages, each confirmed, several at a time."""
    left = iter(range(count))

    async def lane() -> None:
        for _ in left:
            await exchange.publish(make(), key, mandatory=True)

    await asyncio.gather(*(lane() for _ in range(_IN_FLIGHT)))


def _call(url: str, api_key: str, count: int | None, is_over: Event | None) -> list[float]:
    """Seconds of so many calls one after the other, or of those until it is over."""
    taken: list[float] = []
    with httpx.Client(headers={"authorization": f"Bearer {api_key}"}) as client:
        while len(taken) != count and (is_over is None or not is_over.is_set()):
            began = time.perf_counter()
            client.get(url).raise_for_status()
            taken.append(time.perf_counter() - began)
            time.sleep(_CALL_PAUSE_SECONDS)
    return taken


async def _planned(state: State) -> None:
    """Return when the dispatcher is idle."""
    while await state.batches.in_status(Status.VALIDATING, limit=1):  # noqa: ASYNC110  # it is asked in another process
        await asyncio.sleep(0.1)


_BODY = json.dumps(
    {
        "schema": "batch.submit/1",
        "endpoint": URLS[CHAT],
        "input": {
            "kind": "inline",
            "requests": [json.loads(line) for line in lines(CHAT, 1, model=_MODEL).splitlines()],
        },
    }
).encode()
