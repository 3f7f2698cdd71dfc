import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator

import aio_pika
import pytest
from aio_pika.abc import AbstractIncomingMessage

from cli import servers
from shared.bus import connection, subscription, topology
from shared.bus.broker_errors import RefusedError, UnroutableError
from shared.bus.connection import Bus
from shared.errors import TransientError
from shared.tasks import end
from tests.eventually import eventually
from tests.servers import SERVICE


@pytest.fixture
async def own_bus(rabbitmq: servers.RabbitMQ) -> AsyncIterator[Bus]:
    """A bus on the broker that may be killed, its queues empty."""
    bus = Bus(rabbitmq.url(SERVICE))
    await bus.connect()
    await _purge(rabbitmq.url(SERVICE))
    yield bus
    await bus.close()


async def test_a_submission_arrives_as_it_was_published(bus: Bus) -> None:
    inbox = _Inbox()
    await bus.consume(inbox.take)

    await _submit(bus, "m-1", b"body", headers={"traceparent": "00-1"})

    await eventually(lambda: len(inbox.messages) == 1)
    [message] = inbox.messages
    assert message.body == b"body"
    assert (message.message_id, message.type) == ("m-1", "batch.submit.v1")
    assert message.content_type == "application/json"
    assert message.routing_key == "submit.v1.acme"
    assert message.headers == {"traceparent": "00-1"}
    assert message.delivery_mode == aio_pika.DeliveryMode.PERSISTENT
    assert message.app_id == "batchyard"


async def test_an_acked_message_does_not_come_again(bus: Bus, amqp_url: str) -> None:
    inbox = _Inbox()
    await bus.consume(inbox.take)
    await _submit(bus, "m-1")
    await eventually(lambda: len(inbox.messages) == 1)

    await bus.close()

    assert await _count(amqp_url, topology.SUBMIT_QUEUE) == 0


async def test_an_unacked_message_comes_again(bus: Bus, amqp_url: str) -> None:
    first, second = _Inbox(acks=False), _Inbox()
    await bus.consume(first.take)
    await _submit(bus, "m-1")
    await eventually(lambda: len(first.messages) == 1)
    await bus.close()

    other = Bus(amqp_url)
    await other.connect()
    await other.consume(second.take)

    await eventually(lambda: second.ids == ["m-1"])
    assert second.messages[0].redelivered
    await other.close()


async def test_no_more_than_the_prefetch_is_handed_over(bus: Bus) -> None:
    inbox = _Inbox(acks=False)
    for number in range(5):
        await _submit(bus, f"m-{number}")

    await bus.consume(inbox.take, prefetch=2)

    await eventually(lambda: len(inbox.messages) == 2)
    await inbox.messages[0].ack()
    await eventually(lambda: len(inbox.messages) == 3)


async def test_a_rejected_message_is_a_dead_letter_with_its_history(
    bus: Bus, amqp_url: str
) -> None:
    async def reject(message: AbstractIncomingMessage) -> None:
        await message.reject(requeue=False)

    await bus.consume(reject)
    await _submit(bus, "m-1", b"body")

    async def has_come() -> bool:
        return await _count(amqp_url, topology.DEAD_QUEUE) == 1

    await eventually(has_come)
    dead = await _get(amqp_url, topology.DEAD_QUEUE)
    assert (dead.message_id, dead.body) == ("m-1", b"body")
    history = dead.headers["x-death"]
    assert isinstance(history, list)
    assert isinstance(history[0], dict)
    assert history[0]["queue"] == topology.SUBMIT_QUEUE
    assert history[0]["reason"] == "rejected"


async def test_a_message_that_always_fails_is_a_dead_letter_after_its_last_delivery(
    bus: Bus, amqp_url: str
) -> None:
    deliveries = 0

    async def requeue(message: AbstractIncomingMessage) -> None:
        nonlocal deliveries
        deliveries += 1
        await message.reject(requeue=True)

    await bus.consume(requeue)
    await _submit(bus, "m-1")

    async def has_come() -> bool:
        return await _count(amqp_url, topology.DEAD_QUEUE) == 1

    await eventually(has_come)
    assert deliveries == topology.SUBMIT_QUEUE_ARGUMENTS["x-delivery-limit"] + 1  # type: ignore[operator]  # it is a number


async def test_a_lost_channel_is_opened_again_and_what_it_held_comes_again(bus: Bus) -> None:
    first: list[AbstractIncomingMessage] = []
    inbox = _Inbox()

    async def lose(message: AbstractIncomingMessage) -> None:
        if message.redelivered:
            await inbox.take(message)
            return
        first.append(message)
        if len(first) == 3:
            # Nothing was delivered under this tag: the broker closes the channel.
            underlay = message.channel
            await underlay.basic_ack(10_000)

    await bus.consume(lose)
    for number in range(3):
        await _submit(bus, f"m-{number}")

    await eventually(lambda: sorted(map(str, inbox.ids)) == ["m-0", "m-1", "m-2"], 30)
    await bus.ping()


async def test_what_is_held_and_not_acked_lies_in_the_queue_again(bus: Bus, amqp_url: str) -> None:
    for number in range(3):
        await _submit(bus, f"m-{number}", str(number).encode())

    for _ in range(2):
        async with bus.holding(topology.SUBMIT_QUEUE) as messages:
            bodies = [message.body async for message in messages]
        assert bodies == [b"0", b"1", b"2"]
    async with bus.holding(topology.SUBMIT_QUEUE) as messages:
        await (await anext(messages)).ack()

    left = [(await _get(amqp_url, topology.SUBMIT_QUEUE)).body for _ in range(2)]
    assert left == [b"1", b"2"]


async def test_a_queue_that_is_not_there_cannot_be_held(bus: Bus) -> None:
    with pytest.raises(TransientError):
        async with bus.holding("nowhere"):
            pass


@pytest.mark.parametrize("odd", ["!", "g2dkAA", "x.y.z", "AAAA.BBBB"])
async def test_a_direct_address_that_cannot_be_read_ends_no_other_connection(
    odd: str, bus: Bus
) -> None:
    # Whether the broker drops it or breaks on it is its own affair.
    with contextlib.suppress(RefusedError):
        await bus.reply(f"amq.rabbitmq.reply-to.{odd}", b"", properties={})

    await bus.ping()
    await _submit(bus, "m-1")


async def test_a_full_queue_refuses_a_reply(bus: Bus, amqp_url: str) -> None:
    name = f"reply.acme.{secrets.token_hex(4)}"
    async with await aio_pika.connect(amqp_url) as connection:
        channel = await connection.channel()
        limits: dict[str, str | int] = {"x-max-length": 0, "x-overflow": "reject-publish"}
        await channel.declare_queue(name, exclusive=True, arguments=dict(limits))

        with pytest.raises(RefusedError):
            await bus.reply(name, b"", properties={})


async def test_a_mandatory_message_without_a_queue_is_unroutable(bus: Bus) -> None:
    with pytest.raises(UnroutableError):
        await bus.publish(
            "", f"reply.acme.{secrets.token_hex(4)}", b"", properties={}, mandatory=True
        )


async def test_an_event_without_a_subscriber_is_no_error(bus: Bus) -> None:
    await bus.publish(topology.EVENTS_EXCHANGE, "batch.completed.acme.batch_1", b"", properties={})


async def test_a_subscriber_gets_the_events_that_it_bound(bus: Bus, amqp_url: str) -> None:
    async with await aio_pika.connect(amqp_url) as connection:
        channel = await connection.channel()
        queue = await channel.declare_queue(exclusive=True)
        await queue.bind(topology.EVENTS_EXCHANGE, "batch.completed.acme.*")

        for tenant in ("globex", "acme"):
            key = topology.event_key("batch.completed", tenant, "batch_1")
            await bus.publish(topology.EVENTS_EXCHANGE, key, tenant.encode(), properties={})

        message = await queue.get(timeout=60)
        await message.ack()
        assert message.body == b"acme"
        assert await queue.get(fail=False) is None


async def test_many_publish_at_once(bus: Bus, amqp_url: str) -> None:
    await asyncio.gather(*(_submit(bus, f"m-{number}") for number in range(500)))

    assert await _count(amqp_url, topology.SUBMIT_QUEUE) == 500


async def test_connecting_twice_makes_the_topology_once(bus: Bus, amqp_url: str) -> None:
    other = Bus(amqp_url)

    await other.connect()

    await other.ping()
    await other.close()


async def test_a_broker_that_is_not_there_is_transient() -> None:
    bus = Bus(f"amqp://guest:guest@127.0.0.1:{servers.free_port()}/")

    with pytest.raises(TransientError):
        await bus.connect()
    with pytest.raises(TransientError):
        await bus.consume(_Inbox().take)
    with pytest.raises(TransientError):
        await bus.ping()
    await bus.close()


async def test_nothing_confirmed_is_lost_when_the_broker_is_killed_again_and_again(
    own_bus: Bus, rabbitmq: servers.RabbitMQ
) -> None:
    inbox = _Inbox()
    await own_bus.consume(inbox.take)
    publisher = _Publisher(own_bus)
    publishing = asyncio.create_task(publisher.run())
    try:
        for _ in range(2):
            await publisher.confirms(200)
            rabbitmq.kill()
            await publisher.fails()
            rabbitmq.start()
        await publisher.confirms(200)
    finally:
        publisher.stop()
        await publishing

    await eventually(lambda: set(publisher.confirmed) <= set(inbox.ids), 60)
    await own_bus.ping()


async def test_a_publish_into_a_dead_broker_is_transient_and_works_when_it_is_back(
    own_bus: Bus, rabbitmq: servers.RabbitMQ
) -> None:
    rabbitmq.kill()
    with pytest.raises(TransientError):
        await _submit(own_bus, "m-1")
    # Nor does anybody wait for ever who comes when the loss is known.
    await eventually(lambda: _is_lost(own_bus))
    with pytest.raises(TransientError):
        await _submit(own_bus, "m-1")
    with pytest.raises(TransientError):
        await own_bus.depth(topology.SUBMIT_QUEUE)
    rabbitmq.start()

    await _eventually_published(own_bus, "m-2")

    assert await _count(rabbitmq.url(SERVICE), topology.SUBMIT_QUEUE) >= 1


async def test_a_publisher_learns_that_it_is_blocked_and_acks_go_on(
    own_bus: Bus, rabbitmq: servers.RabbitMQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "PATIENCE", 1.0)
    inbox = _Inbox(acks=False)
    await own_bus.consume(inbox.take)
    await _submit(own_bus, "m-1")
    await eventually(lambda: len(inbox.messages) == 1)
    rabbitmq.ctl("set_vm_memory_high_watermark", "absolute", "1MB")
    try:
        with pytest.raises(TransientError):
            for number in range(3):
                await _submit(own_bus, f"blocked-{number}")

        await inbox.messages[0].ack()
    finally:
        rabbitmq.ctl("set_vm_memory_high_watermark", "absolute", "1GB")

    await _eventually_published(own_bus, "m-2")
    await eventually(lambda: "m-2" in inbox.ids)
    assert inbox.ids.count("m-1") == 1


async def test_a_consumer_that_the_broker_gave_up_takes_messages_again(
    own_bus: Bus, rabbitmq: servers.RabbitMQ
) -> None:
    usual = _consumer_limits(rabbitmq, late_ms=1000, look_ms=500)
    inbox, never = _Inbox(), asyncio.Event()

    async def keep_the_first(message: AbstractIncomingMessage) -> None:
        if message.redelivered:
            await inbox.take(message)
        else:
            await never.wait()

    try:
        await own_bus.consume(keep_the_first)
        await _submit(own_bus, "late")

        await eventually(lambda: inbox.ids == ["late"], 60)
    finally:
        _consumer_limits(rabbitmq, late_ms=usual[0], look_ms=usual[1])


async def test_a_connection_that_went_deaf_is_transient_and_never_a_cancellation(
    rabbitmq: servers.RabbitMQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "_CONNECTION", "heartbeat=1&reconnect_interval=1")
    async with _Proxy(rabbitmq.url(SERVICE)) as proxy:
        bus = Bus(proxy.url)
        await bus.connect()
        await _submit(bus, "m-1")
        proxy.go_deaf()

        outcomes = await asyncio.gather(
            *(_submit(bus, f"deaf-{number}") for number in range(50)), return_exceptions=True
        )
        proxy.hear_again()

        assert {type(outcome) for outcome in outcomes} == {TransientError}
        await _eventually_published(bus, "m-2")
        await bus.close()


async def test_a_consumer_that_went_deaf_takes_messages_again(
    rabbitmq: servers.RabbitMQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "_CONNECTION", "heartbeat=1&reconnect_interval=1")
    # One look after the other: one of them is under way when the heartbeat gives the line up.
    monkeypatch.setattr(subscription, "_LISTEN_CHECK_SECONDS", 0.01)
    inbox = _Inbox()
    async with _Proxy(rabbitmq.url(SERVICE)) as proxy:
        bus = Bus(proxy.url)
        await bus.connect()
        await bus.consume(inbox.take)
        proxy.go_deaf()
        await eventually(lambda: _is_lost(bus))
        proxy.hear_again()

        await _eventually_published(bus, "late")
        await eventually(lambda: "late" in inbox.ids)
        await bus.close()


async def test_it_closes_while_it_looks_whether_anybody_listens(
    amqp_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One look after the other: one of them is under way, and may take the cancellation for itself.
    monkeypatch.setattr(subscription, "_LISTEN_CHECK_SECONDS", 0.001)
    for number in range(20):
        bus = Bus(amqp_url)
        await bus.connect()
        await bus.consume(_Inbox().take)
        await asyncio.sleep(number / 1000)

        async with asyncio.timeout(60):
            await bus.close()


async def test_a_publish_that_its_caller_cancels_is_cancelled(
    rabbitmq: servers.RabbitMQ,
) -> None:
    async with _Proxy(rabbitmq.url(SERVICE)) as proxy:
        bus = Bus(proxy.url)
        await bus.connect()
        proxy.go_deaf()
        publishing = asyncio.create_task(_submit(bus, "m-1"))
        await eventually(lambda: proxy.swallowed > 0)

        publishing.cancel()

        with pytest.raises(asyncio.CancelledError):
            await publishing
        proxy.hear_again()
        await bus.close()


async def _submit(
    bus: Bus, message_id: str, body: bytes = b"{}", *, headers: dict[str, str] | None = None
) -> None:
    await bus.publish(
        topology.SUBMIT_EXCHANGE,
        topology.submit_key("acme"),
        body,
        properties={
            "message_id": message_id,
            "type": "batch.submit.v1",
            "content_type": "application/json",
        },
        headers=headers,  # type: ignore[arg-type]  # texts are AMQP values
        mandatory=True,
    )


async def _eventually_published(bus: Bus, message_id: str) -> None:
    async def goes() -> bool:
        try:
            await _submit(bus, message_id)
        except TransientError:
            return False
        return True

    await eventually(goes, 60)


async def _is_lost(bus: Bus) -> bool:
    try:
        await bus.ping()
    except TransientError:
        return True
    return False


async def _count(amqp_url: str, name: str) -> int:
    async with await aio_pika.connect(amqp_url) as connection:
        channel = await connection.channel()
        queue = await channel.declare_queue(name, passive=True)
        return queue.declaration_result.message_count or 0


async def _get(amqp_url: str, name: str) -> AbstractIncomingMessage:
    async with await aio_pika.connect(amqp_url) as connection:
        queue = await (await connection.channel()).get_queue(name)
        message = await queue.get(timeout=60)
        await message.ack()
        return message


async def _purge(amqp_url: str) -> None:
    async with await aio_pika.connect(amqp_url) as connection:
        channel = await connection.channel()
        for name in topology.QUEUE_ARGUMENTS:
            await (await channel.get_queue(name)).purge()


def _consumer_limits(rabbitmq: servers.RabbitMQ, *, late_ms: int, look_ms: int) -> tuple[int, int]:
    """How late an ack may be, and how often new channels look; returns what was before."""
    before = [
        int(rabbitmq.ctl("eval", f"element(2, application:get_env(rabbit, {name}))."))
        for name in ("consumer_timeout", "channel_tick_interval")
    ]
    rabbitmq.ctl(
        "eval",
        f"application:set_env(rabbit, consumer_timeout, {late_ms}), "
        f"application:set_env(rabbit, channel_tick_interval, {look_ms}).",
    )
    return before[0], before[1]


class _Inbox:
    """A handler that keeps what it got."""

    def __init__(self, *, acks: bool = True) -> None:
        self.messages: list[AbstractIncomingMessage] = []
        self._acks = acks

    @property
    def ids(self) -> list[str | None]:
        return [message.message_id for message in self.messages]

    async def take(self, message: AbstractIncomingMessage) -> None:
        self.messages.append(message)
        if self._acks:
            try:
                await message.ack()
            except (aio_pika.exceptions.ChannelInvalidStateError, ConnectionError):
                return  # the broker died first; it delivers again


class _Publisher:
    """Publishes numbered messages, each again until it is confirmed, as publishers must."""

    def __init__(self, bus: Bus) -> None:
        self.confirmed: list[str] = []
        self.failures = 0
        self._bus = bus
        self._stopped = False

    async def confirms(self, more: int) -> None:
        goal = len(self.confirmed) + more
        await eventually(lambda: len(self.confirmed) >= goal, 60)

    async def fails(self) -> None:
        seen = self.failures
        await eventually(lambda: self.failures > seen, 60)

    def stop(self) -> None:
        self._stopped = True

    async def run(self) -> None:
        await asyncio.gather(*(self._lane(lane) for lane in range(8)))

    async def _lane(self, lane: int) -> None:
        number = 0
        while not self._stopped:
            message_id = f"m-{lane}-{number}"
            try:
                await _submit(self._bus, message_id)
            except TransientError:
                self.failures += 1
                await asyncio.sleep(0.1)
            else:
                self.confirmed.append(message_id)
                number += 1


class _Proxy:
    """A way to the broker on which everything sent can begin to vanish."""

    def __init__(self, amqp_url: str) -> None:
        login, _, rest = amqp_url.rpartition("@")
        address, _, virtual_host = rest.partition("/")
        host, _, port = address.partition(":")
        self._target = host, int(port)
        self._url = f"{login}@127.0.0.1:{{port}}/{virtual_host}"
        self._hears = asyncio.Event()
        self._hears.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.swallowed = 0

    @property
    def url(self) -> str:
        return self._url.format(port=self._server.sockets[0].getsockname()[1])

    async def __aenter__(self) -> "_Proxy":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await end(*self._tasks)

    def go_deaf(self) -> None:
        self._hears.clear()

    def hear_again(self) -> None:
        self._hears.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(*self._target)
        for source, sink in ((reader, back), (there, writer)):
            task = asyncio.create_task(self._pump(source, sink))
            self._tasks.add(task)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(65_536):
                if not self._hears.is_set():
                    self.swallowed += len(data)
                await self._hears.wait()
                sink.write(data)
                await sink.drain()
        except ConnectionError:
            pass
        finally:
            sink.close()
