"""Latency and rate of events to a subscriber, against bare messages of the same broker."""

import asyncio
import json
import secrets
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import aio_pika
from aio_pika.abc import AbstractIncomingMessage

from benchmarks.figures import Figure, bounded, compared
from cli.servers import RabbitMQ, Redis, User
from cli.servers.process import Child
from shared.bus.topology import EVENTS_EXCHANGE
from shared.lifecycle import Event
from shared.slices import Part, Slice, SliceUsage
from shared.state import State

_SERVICE = User("bench", "bench", tenant=False)
_LANE, _JOB = "m@none", "job"
_ROWS = 8
#: Commits of the running batch, and commits per second.
_COMMITS, _PER_SECOND = 200, 50
_EVENTS = 2000
_AT_ONCE = 200
_PATIENCE_SECONDS = 120.0

_RELAY = """
import asyncio, sys
from shared.bus.connection import Bus
from shared.bus.relay import Relay
from shared.state import State

async def main(redis_url, amqp_url):
    bus = Bus(amqp_url)
    await bus.connect()
    await Relay(State(redis_url), bus, "events", holder="bench", service_user="bench").run()

asyncio.run(main(*sys.argv[1:]))
"""
_BARE = """
import asyncio, sys
import aio_pika

async def main(amqp_url, exchange, count, size, at_once):
    connection = await aio_pika.connect(amqp_url)
    channel = await connection.channel(publisher_confirms=True)
    target = await channel.get_exchange(exchange)
    body, limiter = b"x" * int(size), asyncio.Semaphore(int(at_once))

    async def publish(number):
        async with limiter:
            message = aio_pika.Message(body, delivery_mode=2, message_id=str(number))
            await target.publish(message, "batch.accepted.bench.x", mandatory=False)

    await asyncio.gather(*(publish(number) for number in range(int(count))))
    await connection.close()

asyncio.run(main(*sys.argv[1:]))
"""


def event_rates(*, turns: int) -> list[Figure]:
    """Latency of a running batch's events, and rate of the relay, each in turns with bare ones."""
    with tempfile.TemporaryDirectory(prefix="batchyard-events-") as name:
        folder = Path(name)
        broker, redis = RabbitMQ(folder / "rabbitmq", [_SERVICE]), Redis(folder / "redis", "bench")
        try:
            broker.start()
            redis.start()
            return asyncio.run(_measure(folder, redis.url, broker.url(_SERVICE), turns))
        finally:
            redis.kill()
            broker.kill()


async def _measure(folder: Path, redis_url: str, amqp_url: str, turns: int) -> list[Figure]:
    state = State(redis_url)
    relay = [sys.executable, "-c", _RELAY, redis_url, amqp_url]
    soon: list[float] = []
    bare_soon: list[float] = []
    rates: list[float] = []
    bare_rates: list[float] = []
    for _ in range(turns):
        bare_soon += await _bare_latencies(amqp_url)
        with _running(folder, "relay", relay):
            soon += await _latencies(state, amqp_url)
        rate, size = await _relay_rate(folder, state, amqp_url, relay)
        rates.append(rate)
        bare = [sys.executable, "-c", _BARE, amqp_url, EVENTS_EXCHANGE]
        bare += [str(_EVENTS), str(size), str(_AT_ONCE)]
        bare_rates.append(await _rate(folder, amqp_url, "bare", bare))
    await state.close()
    return [
        *(
            bounded(
                f"from a commit to its subscriber, {name} (baseline: publish to consume)",
                1000 * _quantile(soon, percent),
                1000 * _quantile(bare_soon, percent),
                unit="ms",
                goal=None,
            )
            for name, percent in (("p50", 50), ("p99", 99))
        ),
        compared(
            "events relayed per second / bare publish-confirm-consume",
            statistics.median(rates),
            statistics.median(bare_rates),
            unit="1/s",
            goal=0.3,
            sense="at least",
        ),
    ]


async def _latencies(state: State, amqp_url: str) -> list[float]:
    """Seconds from each commit of a running batch until its event arrives."""
    began: dict[int, float] = {}
    spent: list[float] = []
    ready, done = asyncio.Event(), asyncio.Event()

    def take(message: AbstractIncomingMessage) -> None:
        if message.type == "batch.in_progress":
            ready.set()
        if message.type == "slice.committed":
            index = json.loads(message.body)["data"]["slice"]["index"]
            spent.append(time.perf_counter() - began[index])
            if len(spent) == _COMMITS:
                done.set()

    async with _subscribed(amqp_url, take):
        # One slice is left over, so the batch keeps running.
        batch_id = await _running_batch(state, slices=_COMMITS + 1)
        # The relay has started, and its lease is its own.
        await asyncio.wait_for(ready.wait(), _PATIENCE_SECONDS)
        for _ in range(_COMMITS):
            due = time.perf_counter() + 1 / _PER_SECOND
            await state.lanes.feed(_LANE, [f"{batch_id}:{len(began)}"])
            [claim] = await state.claims.take(_LANE, _JOB, lease_seconds=600, slices=1, rows=_ROWS)
            usage = SliceUsage(_ROWS, 0, 8 * _ROWS, 0, 8 * _ROWS, 0)
            part = Part(f"parts/{claim.index}", "e", 1, 0, _ROWS, usage)
            began[claim.index] = time.perf_counter()
            await state.claims.commit(claim, part, announced=True)
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
        await asyncio.wait_for(done.wait(), _PATIENCE_SECONDS)
    await state.apply(batch_id, Event.LANE_FAILED)
    return spent


async def _bare_latencies(amqp_url: str) -> list[float]:
    """Seconds from a publish until the message arrives, without Redis and relay."""
    began: dict[str | None, float] = {}
    spent: list[float] = []
    done = asyncio.Event()

    def take(message: AbstractIncomingMessage) -> None:
        spent.append(time.perf_counter() - began[message.message_id])
        if len(spent) == _COMMITS:
            done.set()

    async with (
        _subscribed(amqp_url, take),
        await aio_pika.connect(amqp_url) as connection,
    ):
        exchange = await (await connection.channel()).get_exchange(EVENTS_EXCHANGE)
        for number in range(_COMMITS):
            due = time.perf_counter() + 1 / _PER_SECOND
            message = aio_pika.Message(b"x" * 1000, delivery_mode=2, message_id=str(number))
            began[message.message_id] = time.perf_counter()
            await exchange.publish(message, "batch.accepted.bench.x", mandatory=False)
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
        await asyncio.wait_for(done.wait(), _PATIENCE_SECONDS)
    return spent


async def _relay_rate(
    folder: Path, state: State, amqp_url: str, relay: list[str]
) -> tuple[float, int]:
    """Events per second from a full outbox, and the bytes of one event."""
    batch_ids = [f"batch_{secrets.token_hex(16)}" for _ in range(_EVENTS)]
    for first in range(0, _EVENTS, _AT_ONCE):
        some = batch_ids[first : first + _AT_ONCE]
        await asyncio.gather(*(_accept(state, batch_id) for batch_id in some))
    sizes: list[int] = []

    async def confirmed() -> None:
        while await state.outbox.length("events"):  # noqa: ASYNC110  # Redis sends no notification
            await asyncio.sleep(0.01)

    rate = await _rate(folder, amqp_url, "relay", relay, sizes, confirmed)
    return rate, int(statistics.median(sizes))


async def _rate(
    folder: Path,
    amqp_url: str,
    name: str,
    command: list[str],
    sizes: list[int] | None = None,
    settled: Callable[[], Awaitable[None]] | None = None,
) -> float:
    """Messages a second from the first to the last that a subscriber gets of the command."""
    times: list[float] = []
    done = asyncio.Event()

    def take(message: AbstractIncomingMessage) -> None:
        times.append(time.perf_counter())
        if sizes is not None:
            sizes.append(len(message.body))
        if len(times) == _EVENTS:
            done.set()

    async with _subscribed(amqp_url, take):
        with _running(folder, name, command):
            await asyncio.wait_for(done.wait(), _PATIENCE_SECONDS)
            if settled is not None:
                # Unconfirmed messages would disturb the next turn.
                await asyncio.wait_for(settled(), _PATIENCE_SECONDS)
            return (_EVENTS - 1) / (times[_EVENTS - 1] - times[0])


async def _running_batch(state: State, *, slices: int) -> str:
    batch_id = f"batch_{secrets.token_hex(16)}"
    await _accept(state, batch_id)
    plan = [Slice(at, at + 1, at * _ROWS, _ROWS, 1) for at in range(slices)]
    await state.slices.plan(batch_id, "p", 0, plan)
    fields: dict[str, str | int] = {
        "plan": "p",
        "slices_total": slices,
        "total": slices * _ROWS,
        "lane": _LANE,
    }
    await state.apply(batch_id, Event.INPUT_ACCEPTED, fields)
    await state.lanes.open_job(_LANE, "", _JOB)
    return batch_id


async def _accept(state: State, batch_id: str) -> None:
    fields: dict[str, str | int] = {
        "id": batch_id,
        "tenant": "bench",
        "endpoint": "/v1/embeddings",
        "input_file_id": "file-bench",
        "bucket": "batchyard",
        "key": "files/bench",
        "etag": "e",
        "completion_window": "24h",
        "created_at": int(time.time()),
        "expires_at": int(time.time()) + 86_400,
    }
    await state.batches.accept(batch_id, "print", fields, input_file=None, submission=None)


@asynccontextmanager
async def _subscribed(
    amqp_url: str, take: Callable[[AbstractIncomingMessage], None]
) -> AsyncIterator[None]:
    """All events, through a durable queue."""
    async with await aio_pika.connect(amqp_url) as connection:
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=_AT_ONCE)
        queue = await channel.declare_queue(
            f"sub.bench.{secrets.token_hex(4)}",
            durable=True,
            arguments={"x-queue-type": "quorum"},
        )
        await queue.bind(EVENTS_EXCHANGE, "#")

        async def acked(message: AbstractIncomingMessage) -> None:
            take(message)
            await message.ack()

        tag = await queue.consume(acked)
        try:
            yield
        finally:
            await queue.cancel(tag)
            await queue.delete(if_unused=False, if_empty=False)


@contextmanager
def _running(folder: Path, name: str, command: list[str]) -> Iterator[None]:
    child = Child(name, command, folder)
    child.start()
    try:
        yield
    finally:
        child.stop()


def _quantile(values: list[float], percent: int) -> float:
    return statistics.quantiles(values, n=100)[percent - 1]
