"""A subscriber stops consuming, its queue fills, and it returns; others notice nothing."""

import asyncio
import json
import os
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import aio_pika
import psutil
import pytest
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage, AbstractQueue

from shared import ids
from shared.bus import topology
from shared.bus.replays import REPLAY, REPLAYED
from tests.eventually import eventually
from tests.faults.conftest import BrokerYard
from tests.queues import next_message
from tests.servers import TENANT
from tests.subscriber import Subscriber

pytestmark = pytest.mark.timeout(3600)
_EVENTS = int(os.environ.get("MISSED_EVENTS", "100000"))
#: `accepted` and `in_progress`.
_OF_A_BATCH = 2
#: The queue holds so much of what its subscriber misses. An answer to it has to fit: 50 batches
#: with two events each, and the last message.
_KEPT = 0.3
_PREFETCH = 10
#: Of the others; a message is acknowledged before the next ones come.
_AT_ONCE = 200
_QUORUM: dict[str, Any] = {"x-queue-type": "quorum"}


@pytest.mark.parametrize("overflow", ["drop-head", "reject-publish"])
async def test_a_subscriber_that_stops_for_a_while_troubles_nobody_and_hears_what_it_missed(
    overflow: str, yard: BrokerYard
) -> None:
    await _stop_for(yard, events=500, overflow=overflow)


@pytest.mark.on_demand
async def test_a_subscriber_that_stops_for_a_hundred_thousand_events_hears_what_it_missed(
    yard: BrokerYard,
) -> None:
    figures = await _stop_for(yard, events=_EVENTS, overflow="drop-head")

    print("stopped subscriber:", json.dumps(figures))  # noqa: T201  # what the run is for


async def _stop_for(yard: BrokerYard, *, events: int, overflow: str) -> dict[str, float]:
    run, limit = secrets.token_hex(4), int(events * _KEPT)
    policy = json.dumps({"max-length": limit, "overflow": overflow})
    name = f"sub.{TENANT.name}.stopped-{run}"
    few = ("--priority", "9", "--apply-to", "queues", "few-events", f"^{name}$", policy)
    yard.rabbitmq.ctl("set_policy", *few)
    broker = psutil.Process(yard.rabbitmq.child.pid)
    try:
        async with _listening(yard, f"sub.{TENANT.name}.live-{run}") as live:
            alone = await _rate(yard, live, f"{run}.a", events // 5)
            memory = broker.memory_info().rss
            async with _bound(yard, name) as (_, queue):
                await queue.channel.set_qos(prefetch_count=_PREFETCH)
                # It takes some, and never says that it has them.
                await queue.consume(asyncio.Queue[AbstractIncomingMessage]().put)
                since = datetime.now(UTC)
                beside = await _rate(yard, live, f"{run}.b", events)
                ready, queue_memory = await _look(yard, name)
            grown = broker.memory_info().rss - memory
            # A queue that refuses tells its publishers late: what is on its way comes in.
            assert ready <= limit + 2 * _AT_ONCE * (overflow == "reject-publish")
            again = await _rate(yard, live, f"{run}.c", events // 5)

            returned = Subscriber()
            began = asyncio.get_running_loop().time()
            async with _bound(yard, name) as (channel, queue):
                while (message := await queue.get(fail=False, no_ack=True)) is not None:
                    returned.take(message)
                found = len(returned.bodies)
                pages = await _resync(channel, queue, returned, since)
            spent = asyncio.get_running_loop().time() - began
    finally:
        yard.rabbitmq.ctl("clear_policy", "few-events")

    made = {ids.batch_id(TENANT.name, name) for name in _names(f"{run}.b", events)}
    missed = {source for source, state in live.states.items() if state["id"] in made}
    assert len(missed) == events // _OF_A_BATCH
    assert found < events
    assert {source: returned.states[source] for source in missed} == {
        source: live.states[source] for source in missed
    }
    for key, body in live.bodies.items():
        assert key[0] not in missed or returned.bodies[key] == body
    return {
        "events": events,
        "rate_alone": round(alone),
        "rate_beside_the_stopped": round(beside),
        "rate_afterwards": round(again),
        "ratio": round(beside / ((alone + again) / 2), 2),
        "queue_mb": round(queue_memory / 1e6, 1),
        "broker_growth_mb": round(grown / 1e6, 1),
        "kept_by_the_queue": found,
        "resync_seconds": round(spent, 1),
        "resync_pages": pages,
    }


def _names(run: str, events: int) -> list[str]:
    return [f"{run}.{number}" for number in range(events // _OF_A_BATCH)]


async def _rate(yard: BrokerYard, live: Subscriber, run: str, events: int) -> float:
    """Events a second that come to the one who listens, of batches that are made meanwhile."""
    loop = asyncio.get_running_loop()
    began, goal = loop.time(), len(live.bodies) + events
    await yard.publish_all(_names(run, events))
    await eventually(lambda: len(live.bodies) >= goal, 60 + events / 20)
    return events / (loop.time() - began)


async def _look(yard: BrokerYard, name: str) -> tuple[int, int]:
    """Messages that wait in the queue, and its bytes of memory; once all that may go have gone."""
    seen = 0, 0, 0

    async def are_delivered() -> bool:
        nonlocal seen
        columns = ("name", "messages_ready", "messages_unacknowledged", "memory")
        listing = await asyncio.to_thread(yard.rabbitmq.ctl, "list_queues", *columns)
        [row] = [line.split() for line in listing.splitlines() if line.startswith(name)]
        seen = int(row[1]), int(row[2]), int(row[3])
        return seen[1] == _PREFETCH

    # The broker counts every few seconds.
    await eventually(are_delivered, 60)
    return seen[0], seen[2]


@asynccontextmanager
async def _bound(
    yard: BrokerYard, name: str
) -> AsyncIterator[tuple[AbstractChannel, AbstractQueue]]:
    """The tenant's durable queue for all of its events; it stays."""
    async with await aio_pika.connect(yard.rabbitmq.url(TENANT)) as link:
        channel = await link.channel()
        queue = await channel.declare_queue(name, durable=True, arguments=_QUORUM)
        await queue.bind(topology.EVENTS_EXCHANGE, f"batch.*.{TENANT.name}.*")
        yield channel, queue


@asynccontextmanager
async def _listening(yard: BrokerYard, name: str) -> AsyncIterator[Subscriber]:
    """A subscriber that takes all that comes."""
    subscriber = Subscriber()

    async def take(message: AbstractIncomingMessage) -> None:
        subscriber.take(message)
        await message.ack()

    async with _bound(yard, name) as (channel, queue):
        await channel.set_qos(prefetch_count=_AT_ONCE)
        await queue.consume(take)
        yield subscriber
        await queue.delete(if_unused=False, if_empty=False)


async def _resync(
    channel: AbstractChannel, queue: AbstractQueue, returned: Subscriber, since: datetime
) -> int:
    """Ask for all that was missed, page by page; returns how many pages there were."""
    exchange = await channel.get_exchange(topology.SUBMIT_EXCHANGE, ensure=False)
    after: str | None = since.isoformat()
    pages = 0
    while after is not None:
        pages += 1
        await exchange.publish(_params(queue.name, after), topology.replay_key(TENANT.name))
        message = await next_message(queue, 120)
        while message.type != REPLAYED:
            returned.take(message)
            message = await next_message(queue, 120)
        reply = json.loads(message.body)
        assert reply["status"] == "replayed", reply
        after = reply["next_since"]
    return pages


def _params(reply_to: str, since: str) -> aio_pika.Message:
    return aio_pika.Message(
        json.dumps({"schema": "batch.replay/1", "since": since}).encode(),
        type=REPLAY,
        message_id=secrets.token_hex(8),
        user_id=TENANT.name,
        reply_to=reply_to,
        content_type="application/json",
        delivery_mode=2,
    )
