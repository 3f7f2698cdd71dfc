import asyncio
import json
import os
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aio_pika
import pytest
from aio_pika.abc import AbstractChannel, AbstractExchange, AbstractIncomingMessage, AbstractQueue
from aiormq.exceptions import ChannelAccessRefused

from cli import servers
from dispatcher import replay as replay_module
from dispatcher.inputs import Inputs
from dispatcher.intake import Intake
from dispatcher.replay import Replay
from shared.bus import dead_letters, topology
from shared.bus.connection import Bus
from shared.bus.event_messages import EventMessages
from shared.bus.relay import Relay
from shared.bus.replays import REPLAY, REPLAYED
from shared.catalog import Catalog
from shared.input_places import InputPlaces
from shared.lifecycle import Event
from shared.monitoring.trail import Trail
from shared.state import State
from shared.storage import Storage
from shared.submission.admission import NewBatchQuota
from tests.batches import claimed, in_progress, part, validating
from tests.eventually import eventually
from tests.integration.dispatcher.doors import an_adder
from tests.queues import next_message
from tests.servers import SERVICE, TENANT

_QUORUM: dict[str, Any] = {"x-queue-type": "quorum"}


_CATALOG = Catalog.model_validate(
    {"pools": {"cpu": {"resources": {"CPU": 1}}}, "models": {"m": {"pools": ["cpu"]}}}
)


class Late:
    """A tenant at the broker who has missed something, and the dispatcher's intake behind it."""

    def __init__(self, channel: AbstractChannel, queue: AbstractQueue) -> None:
        self._channel = channel
        self.queue = queue
        self.settled: list[AbstractIncomingMessage] = []

    async def ask(
        self,
        *,
        reply_to: str | None = None,
        key: str = topology.replay_key(TENANT.name),
        properties: Mapping[str, Any] | None = None,
        exchange: AbstractExchange | None = None,
        **fields: Any,
    ) -> None:
        """Publish a replay request; `properties` replace correct ones."""
        exchange = exchange or await self._channel.get_exchange(
            topology.SUBMIT_EXCHANGE, ensure=False
        )
        properties = {
            "type": REPLAY,
            "message_id": f"m-{secrets.token_hex(4)}",
            "correlation_id": "ask-1",
            "user_id": TENANT.name,
            "reply_to": self.queue.name if reply_to is None else reply_to,
            "content_type": "application/json",
            "delivery_mode": aio_pika.DeliveryMode.PERSISTENT,
            **(properties or {}),
        }
        await exchange.publish(aio_pika.Message(_body(**fields), **properties), key, mandatory=True)

    async def answered(self, **asked: Any) -> tuple[list[AbstractIncomingMessage], dict[str, Any]]:
        """The events that come for a request, and what closes them."""
        await self.ask(**asked)
        return await self.answer()

    async def answer(self) -> tuple[list[AbstractIncomingMessage], dict[str, Any]]:
        """As `answered`, for what was asked before."""
        events: list[AbstractIncomingMessage] = []
        while True:
            message = await next_message(self.queue, 60)
            if message.type == REPLAYED:
                assert message.correlation_id == "ask-1"
                return events, json.loads(message.body)
            events.append(message)

    async def is_settled(self, count: int = 1) -> None:
        await eventually(lambda: len(self.settled) >= count, 60)


@pytest.fixture
async def service(rabbitmq: servers.RabbitMQ) -> AsyncIterator[Bus]:
    bus = Bus(rabbitmq.url(SERVICE))
    await bus.connect()
    yield bus
    await bus.close()


@pytest.fixture
async def acme(
    state: State, storage: Storage, service: Bus, rabbitmq: servers.RabbitMQ
) -> AsyncIterator[Late]:
    quota = NewBatchQuota(_CATALOG, 1000, 1000, 1000)
    intake = Intake(
        state,
        storage,
        service,
        service_user=SERVICE.name,
        inputs=Inputs(
            state,
            storage,
            places=InputPlaces(storage.bucket, "inbox/{tenant}/", {}),
            max_bytes=1000,
        ),
        quota=quota,
        additions=an_adder(state, storage, _CATALOG, quota),
        replay=Replay(state, service, EventMessages()),
        trail=Trail(Path(os.devnull)),
    )
    async with _queue(rabbitmq) as (channel, queue):
        late = Late(channel, queue)

        async def take(message: AbstractIncomingMessage) -> None:
            await intake.take(message)
            late.settled.append(message)

        await service.consume(take)
        yield late


async def test_a_batchs_events_come_again_as_they_were(
    state: State, service: Bus, acme: Late, rabbitmq: servers.RabbitMQ
) -> None:
    [only] = await claimed(state, slices=1, correlation_id="order-17")
    await state.claims.commit(only, part(only))
    await state.apply(only.batch_id, Event.OUTPUT_COMMITTED)
    async with _queue(rabbitmq, f"batch.*.acme.{only.batch_id}") as (_, live):
        await _relay(state, service).relay_some(wait_seconds=0)
        first = [await next_message(live, 60) for _ in range(4)]

    again, reply = await acme.answered(batch_id=only.batch_id)

    assert [_whole(message) for message in again] == [_whole(message) for message in first]
    assert again[-1].type == "batch.completed"
    assert reply == {"status": "replayed", "batches": 1, "events": 4, "next_since": None}


async def test_all_that_changed_since_a_time_comes_in_pages(
    state: State, acme: Late, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay_module, "_BATCHES", 2)
    await validating(state)
    since = await _last_change(state)
    batches = [await in_progress(state) for _ in range(5)]
    await validating(state, tenant="globex")

    found: list[tuple[str, str]] = []
    pages = 0
    ask: str | None = since
    while ask is not None:
        events, reply = await acme.answered(since=ask)
        found += [(json.loads(m.body)["subject"], m.type or "") for m in events]
        assert reply["events"] == len(events)
        ask, pages = reply["next_since"], pages + 1

    types = ("batch.accepted", "batch.in_progress")
    assert sorted(found) == sorted((batch_id, kind) for batch_id in batches for kind in types)
    assert pages == 3
    assert await acme.answered(since=await _last_change(state)) == (
        [],
        {"status": "replayed", "batches": 0, "events": 0, "next_since": None},
    )


async def test_while_redis_is_made_again_nothing_is_replayed_from_what_is_left_of_it(
    state: State, acme: Late, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch_id = await in_progress(state)
    history, tasks = state.events.history, list[asyncio.Task[None]]()

    async def end_it() -> None:
        await asyncio.sleep(0.2)
        await state.restore.end()

    async def of_an_older_redis(batch_ids: list[str]) -> Any:
        # Its call waited for a Redis that was put back meanwhile.
        monkeypatch.undo()
        await state.restore.begin()
        tasks.append(asyncio.create_task(end_it()))
        return [entries[:1] for entries in await history(batch_ids)]

    monkeypatch.setattr(state.events, "history", of_an_older_redis)

    events, reply = await acme.answered(batch_id=batch_id)
    await asyncio.gather(*tasks)

    assert [message.type for message in events] == ["batch.accepted", "batch.in_progress"]
    assert reply["events"] == 2


async def test_another_tenants_batch_is_as_none(state: State, acme: Late) -> None:
    foreign = await validating(state, tenant="globex")
    none = f"batch_{secrets.token_hex(16)}"

    answers = [await acme.answered(batch_id=batch_id) for batch_id in (foreign, none)]

    assert [events for events, _ in answers] == [[], []]
    reply = [
        json.dumps(answer).replace(batch_id, "")
        for (_, answer), batch_id in zip(answers, (foreign, none), strict=True)
    ]
    assert reply[0] == reply[1]
    assert answers[0][1]["error"]["code"] == "unknown_batch"


async def test_a_wrong_request_gets_every_reason(acme: Late) -> None:
    events, reply = await acme.answered(batch_id="batch_1")

    assert events == []
    assert (reply["status"], reply["error"]["param"]) == ("rejected", "batch_id")


async def test_a_request_keeps_the_rules_of_every_message(acme: Late) -> None:
    events, reply = await acme.answered(
        batch_id="batch_1",
        more=1,
        key=topology.submit_key(TENANT.name),
        properties={"delivery_mode": aio_pika.DeliveryMode.NOT_PERSISTENT, "expiration": 3600},
    )

    assert events == []
    params = [error["param"] for error in reply["errors"]]
    assert params == ["routing_key", "delivery_mode", "expiration", "batch_id", "more"]
    assert (reply["error"], reply["error_count"]) == (reply["errors"][0], 5)


async def test_a_request_out_of_the_dead_letters_is_its_senders(
    state: State, service: Bus, acme: Late
) -> None:
    batch_id = await validating(state, tenant=TENANT.name)
    sent = {"message_id": "m-1", "type": REPLAY, "content_type": "application/json"}
    letter: dict[str, Any] = {
        "user": TENANT.name,
        "properties": {
            **sent,
            "correlation_id": "ask-1",
            "reply_to": acme.queue.name,
            "delivery_mode": 2,
        },
    }

    await service.publish(
        topology.SUBMIT_EXCHANGE,
        topology.replay_key(TENANT.name),
        _body(batch_id=batch_id),
        properties={**sent, "user_id": SERVICE.name},
        headers={dead_letters.REPLAY: letter},
        mandatory=True,
    )

    events, reply = await acme.answer()
    assert [event.type for event in events] == ["batch.accepted"]
    assert reply["status"] == "replayed"


async def test_nothing_goes_to_a_queue_of_another(
    state: State, service: Bus, acme: Late, rabbitmq: servers.RabbitMQ
) -> None:
    batch_id = await validating(state)
    async with await aio_pika.connect(rabbitmq.url(SERVICE)) as connection:
        channel = await connection.channel()
        foreign = await channel.declare_queue("sub.globex.x", exclusive=True)

        for queue in (foreign.name, topology.SUBMIT_QUEUE, ""):
            await acme.ask(batch_id=batch_id, reply_to=queue)
        await acme.is_settled(3)

        assert await foreign.get(fail=False) is None
    assert len(acme.settled) == 3


async def test_a_queue_that_is_gone_or_full_keeps_no_message_waiting(
    state: State, acme: Late, rabbitmq: servers.RabbitMQ
) -> None:
    batch_id = await in_progress(state)
    full = {**_QUORUM, "x-max-length": 1, "x-overflow": "reject-publish"}
    async with _queue(rabbitmq, arguments=full) as (_, queue):
        for name in ("sub.acme.gone", queue.name):
            for _ in range(3):
                await acme.ask(batch_id=batch_id, reply_to=name)

        await acme.is_settled(6)

    assert not any(message.redelivered for message in acme.settled)


async def test_an_address_that_the_broker_cannot_read_ends_no_connection_of_ours(
    state: State, service: Bus, acme: Late
) -> None:
    batch_id = await validating(state)

    for number, odd in enumerate(("!", "g2dkAA", "x.y.z", "AAAA.BBBB"), start=1):
        await acme.ask(batch_id=batch_id, reply_to=f"{topology.DIRECT_REPLY}{odd}")
        await acme.is_settled(number)
        await service.ping()

    events, _ = await acme.answered(batch_id=batch_id)
    assert [event.type for event in events] == ["batch.accepted"]


async def test_events_come_to_a_direct_address_too(
    state: State, acme: Late, rabbitmq: servers.RabbitMQ
) -> None:
    batch_id = await validating(state)
    answers: asyncio.Queue[AbstractIncomingMessage] = asyncio.Queue()
    async with await aio_pika.connect(rabbitmq.url(TENANT)) as connection:
        channel = await connection.channel()
        direct = await channel.get_queue("amq.rabbitmq.reply-to", ensure=False)
        await direct.consume(answers.put, no_ack=True)
        exchange = await channel.get_exchange(topology.SUBMIT_EXCHANGE, ensure=False)

        await acme.ask(batch_id=batch_id, reply_to=direct.name, exchange=exchange)
        event, end = [await asyncio.wait_for(answers.get(), 60) for _ in range(2)]

    assert (event.type, end.type) == ("batch.accepted", REPLAYED)
    assert event.headers["cloudEvents_subject"] == batch_id


async def test_of_one_tenant_one_replay_runs_at_a_time(
    state: State, service: Bus, acme: Late, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch_id = await validating(state)
    publish, begun, go_on = service.publish, asyncio.Event(), asyncio.Event()

    async def slow(*arguments: Any, **more: Any) -> None:
        if more["properties"]["type"] == "batch.accepted":
            begun.set()
            await go_on.wait()
        await publish(*arguments, **more)

    monkeypatch.setattr(service, "publish", slow)
    await acme.ask(batch_id=batch_id)
    await begun.wait()

    events, reply = await acme.answered(batch_id=batch_id)
    go_on.set()
    await acme.is_settled(2)

    assert (events, reply["error"]["code"]) == ([], "replay_in_progress")


async def test_a_tenant_may_not_ask_in_anothers_name(
    acme: Late, rabbitmq: servers.RabbitMQ
) -> None:
    async with await aio_pika.connect(rabbitmq.url(TENANT)) as connection:
        exchange = await (await connection.channel()).get_exchange(
            topology.SUBMIT_EXCHANGE, ensure=False
        )

        with pytest.raises(ChannelAccessRefused):
            await exchange.publish(aio_pika.Message(b"{}"), topology.replay_key("globex"))


def _body(**fields: Any) -> bytes:
    return json.dumps({"schema": "batch.replay/1", **fields}).encode()


async def _last_change(state: State) -> str:
    changes = await state.events.changes("acme", after=0, limit=999)
    return (datetime.fromtimestamp(0, UTC) + timedelta(microseconds=changes[-1].at)).isoformat()


def _whole(message: AbstractIncomingMessage) -> tuple[object, ...]:
    """All that a subscriber sees of a message but the way that it took."""
    return (
        message.body,
        message.headers,
        message.message_id,
        message.type,
        message.correlation_id,
        message.timestamp,
        message.content_type,
        message.delivery_mode,
        message.app_id,
    )


def _relay(state: State, bus: Bus) -> Relay:
    return Relay(state, bus, "events", holder="a", service_user=SERVICE.name)


@asynccontextmanager
async def _queue(
    rabbitmq: servers.RabbitMQ, key: str | None = None, arguments: dict[str, Any] = _QUORUM
) -> AsyncIterator[tuple[AbstractChannel, AbstractQueue]]:
    """A queue of the tenant's own."""
    async with await aio_pika.connect(rabbitmq.url(TENANT)) as connection:
        channel = await connection.channel()
        queue = await channel.declare_queue(
            f"sub.acme.{secrets.token_hex(4)}", durable=True, arguments=arguments
        )
        if key is not None:
            await queue.bind(topology.EVENTS_EXCHANGE, key)
        yield channel, queue
        await queue.delete(if_unused=False, if_empty=False)
