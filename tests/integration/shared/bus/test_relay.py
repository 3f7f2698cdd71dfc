import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from urllib.parse import unquote, urlsplit

import aio_pika
import pytest
from aio_pika.abc import AbstractIncomingMessage, AbstractQueue
from redis.asyncio import Redis

from cli import servers
from shared.bus import topology
from shared.bus.connection import Bus
from shared.bus.relay import Relay
from shared.errors import TransientError
from shared.lifecycle import Event
from shared.state import State
from shared.state.outbox import Box
from shared.tasks import end
from tests.batches import claimed, in_progress, part, validating
from tests.eventually import eventually
from tests.on_disk import are_bound
from tests.servers import SERVICE

_SUBMISSION = json.dumps({"type": "batch.ready.v1", "tenant": "acme", "batch_id": "batch_1"})


async def test_events_go_out_in_order_and_are_removed(
    state: State, bus: Bus, amqp_url: str
) -> None:
    batch_id = await in_progress(state)
    await state.apply(batch_id, Event.CANCEL_REQUESTED)

    async with _subscriber(amqp_url) as events:
        sent = await _relay(state, bus, amqp_url).relay_some(wait_seconds=0)

        types = [message.type for message in await _all(events)]
    assert sent == 3
    assert types == ["batch.accepted", "batch.in_progress", "batch.cancelling"]
    assert await state.outbox.length("events") == 0


async def test_an_event_is_a_cloudevent_with_the_whole_small_state(
    state: State, bus: Bus, amqp_url: str
) -> None:
    [only] = await claimed(state, slices=1, correlation_id="order-17", metadata='{"a":"b"}')
    await state.claims.commit(only, part(only, failed=1))
    output = {"bucket": "b", "key": "k", "etag": "e", "size": 1, "sha256": "0"}
    await state.conclude(
        only.batch_id,
        Event.OUTPUT_COMMITTED,
        files=[],
        fields={"output_file_id": "file-1", "output_object": json.dumps(output)},
    )

    async with _subscriber(amqp_url) as events:
        await _relay(state, bus, amqp_url).relay_some(wait_seconds=0)
        message = (await _all(events))[-1]

    envelope = json.loads(message.body)
    data = envelope.pop("data")
    time = envelope.pop("time")
    assert envelope == {
        "specversion": "1.0",
        "id": f"evt_{only.batch_id}_00000004",
        "source": f"/tenants/acme/batches/{only.batch_id}",
        "type": "batch.completed",
        "subject": only.batch_id,
        "datacontenttype": "application/json",
        "sequence": "00000004",
        "correlationid": "order-17",
    }
    assert (data["id"], data["object"], data["status"]) == (only.batch_id, "batch", "completed")
    assert data["request_counts"] == {"total": 10, "completed": 9, "failed": 1}
    assert data["usage"]["total_tokens"] == 50
    assert (data["output_file_id"], data["error_file_id"]) == ("file-1", None)
    assert data["output"] == output
    assert data["metadata"] == {"a": "b"}
    assert message.routing_key == f"batch.completed.acme.{only.batch_id}"
    assert message.content_type == "application/cloudevents+json; charset=utf-8"
    assert (message.message_id, message.type) == (envelope["id"], "batch.completed")
    assert message.correlation_id == "order-17"
    assert message.delivery_mode == aio_pika.DeliveryMode.PERSISTENT
    assert message.app_id == "batchyard"
    assert message.timestamp is not None
    assert {f"cloudEvents_{name}": value for name, value in envelope.items()} == {
        name: value for name, value in message.headers.items() if name != "cloudEvents_time"
    }
    assert message.headers["cloudEvents_time"] == time


async def test_an_event_without_a_correlation_is_correlated_by_its_batch(
    state: State, bus: Bus, amqp_url: str
) -> None:
    batch_id = await validating(state)

    async with _subscriber(amqp_url) as events:
        await _relay(state, bus, amqp_url).relay_some(wait_seconds=0)
        [message] = await _all(events)

    assert message.correlation_id == batch_id
    assert "correlationid" not in json.loads(message.body)


async def test_progress_says_how_fast_and_how_long_still(
    state: State, bus: Bus, amqp_url: str
) -> None:
    first, *_ = await claimed(state, slices=4, in_progress_at=1)
    await state.claims.commit(first, part(first))

    async with _subscriber(amqp_url) as events:
        relay = _relay(state, bus, amqp_url)
        await relay.relay_some(wait_seconds=0)
        await relay.relay_progress()
        messages = await _all(events)

    [progress] = [json.loads(m.body)["data"] for m in messages if m.type == "batch.progress"]
    assert messages[-1].type == "batch.progress"
    assert progress["request_counts"] == {"total": 40, "completed": 10, "failed": 0}
    assert progress["tokens_per_second"] >= 0
    assert progress["remaining_seconds"] >= 0


async def test_a_submission_goes_to_the_dispatchers_queue(
    state: State, bus: Bus, amqp_url: str
) -> None:
    batch_id = await validating(state, submission=_SUBMISSION)

    sent = await _relay(state, bus, amqp_url, "submissions").relay_some(wait_seconds=0)

    [message] = await _taken(amqp_url, topology.SUBMIT_QUEUE)
    assert sent == 1
    assert batch_id
    assert json.loads(message.body) == {"batch_id": "batch_1"}
    assert (message.message_id, message.type) == ("batch_1", "batch.ready.v1")
    assert message.routing_key == "submit.v1.acme"
    assert message.user_id == _user(amqp_url)
    assert await state.outbox.length("submissions") == 0


async def test_a_submission_names_the_pack_of_its_manifest(
    state: State, bus: Bus, amqp_url: str
) -> None:
    pack = {"pack": "packs/1/0.jsonl"}
    await validating(state, submission=json.dumps({**json.loads(_SUBMISSION), **pack}))

    await _relay(state, bus, amqp_url, "submissions").relay_some(wait_seconds=0)

    [message] = await _taken(amqp_url, topology.SUBMIT_QUEUE)
    assert json.loads(message.body) == {"batch_id": "batch_1", **pack}


async def test_a_crash_before_the_removal_repeats_the_same_message(
    state: State, bus: Bus, amqp_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await in_progress(state)
    relay = _relay(state, bus, amqp_url)
    async with _subscriber(amqp_url) as events:
        with monkeypatch.context() as patch:
            patch.setattr(state.outbox, "remove", _crash)
            with pytest.raises(SystemExit):
                await relay.relay_some(wait_seconds=0)
        first = await _all(events)

        await relay.relay_some(wait_seconds=0)

        again = await _all(events)
    assert [m.message_id for m in again] == [m.message_id for m in first]
    assert [m.body for m in again] == [m.body for m in first]
    assert await state.outbox.length("events") == 0


async def test_a_failure_keeps_the_rest_of_its_batch_and_nothing_of_others(
    state: State, bus: Bus, amqp_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken, whole = await in_progress(state), await in_progress(state)
    publish = bus.publish

    async def refuse_one(exchange: str, key: str, *rest: object, **more: object) -> None:
        if key == f"batch.accepted.acme.{broken}":
            raise TransientError("no confirm")
        await publish(exchange, key, *rest, **more)  # type: ignore[arg-type]  # handed on as it came

    async with _subscriber(amqp_url) as events:
        monkeypatch.setattr(bus, "publish", refuse_one)
        with pytest.raises(TransientError):
            await _relay(state, bus, amqp_url).relay_some(wait_seconds=0)
        subjects = {json.loads(m.body)["subject"] for m in await _all(events)}

    left = await state.outbox.read("events", limit=10, wait_seconds=0)
    assert subjects == {whole}
    assert [entry.snapshot()["id"] for entry in left] == [broken, broken]


async def test_entries_stay_while_the_broker_is_down_and_then_all_go_in_order(
    state: State, rabbitmq: servers.RabbitMQ
) -> None:
    url = rabbitmq.url(SERVICE)
    bus = Bus(url)
    await bus.connect()
    async with _bound(url, "sub.batchyard.relay") as name:
        run_dir = rabbitmq.child.log_file.parent
        await eventually(lambda: are_bound(run_dir, name), 30)
        rabbitmq.kill()
        async with _running(_relay(state, bus, url)):
            made = [await in_progress(state) for _ in range(5)]
            await eventually(lambda: _is_down(bus))
            assert await state.outbox.length("events") == 10
            rabbitmq.start()

            async def is_empty() -> bool:
                return await state.outbox.length("events") == 0

            await eventually(is_empty, 60)
        messages = await _taken(url, name)
    await bus.close()

    by_batch = {batch_id: _types(messages, batch_id) for batch_id in made}
    assert set(map(tuple, by_batch.values())) == {("batch.accepted", "batch.in_progress")}


async def test_of_two_relays_one_works_until_it_ends(
    state: State,
    bus: Bus,
    amqp_url: str,
    redis: Redis,
    namespace: str,
) -> None:
    async with _subscriber(amqp_url) as events:
        async with _running(_relay(state, bus, amqp_url, holder="a")):
            await eventually(lambda: _is_held_by(redis, namespace, "a"))
            async with _running(_relay(state, bus, amqp_url, holder="b")):
                await in_progress(state)
                await eventually(lambda: _is_empty(state))
                assert await _is_held_by(redis, namespace, "a")
        async with _running(_relay(state, bus, amqp_url, holder="b")):
            await in_progress(state)
            await eventually(lambda: _is_empty(state))
            assert await _is_held_by(redis, namespace, "b")

        messages = await _all(events)
    assert len({message.message_id for message in messages}) == len(messages) == 4


async def test_a_relay_whose_publish_takes_longer_than_its_lease_stays_the_only_one(
    state: State, bus: Bus, amqp_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish, go_on = bus.publish, asyncio.Event()
    publishing = 0

    async def slow(*arguments: object, **more: object) -> None:
        nonlocal publishing
        publishing += 1
        await go_on.wait()
        await publish(*arguments, **more)  # type: ignore[arg-type]  # handed on as it came

    monkeypatch.setattr(bus, "publish", slow)
    await validating(state)
    async with _subscriber(amqp_url) as events:
        async with (
            _running(_relay(state, bus, amqp_url, holder="a", seconds=5)),
            _running(_relay(state, bus, amqp_url, holder="b", seconds=5)),
        ):
            await eventually(lambda: publishing == 1)
            with pytest.raises(AssertionError):
                await eventually(lambda: publishing > 1, 7)
            go_on.set()
            await eventually(lambda: _is_empty(state))

        assert len(await _all(events)) == 1


@pytest.mark.parametrize("kept", [0, 1])
async def test_a_relay_that_lost_its_lease_stops_publishing(
    kept: int, state: State, bus: Bus, amqp_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a call keeps a cancellation to itself, as `wait_for` of Python 3.11 may."""
    began, ended = asyncio.Event(), asyncio.Event()

    async def endless(*_: object, **__: object) -> None:
        began.set()
        for _turn in range(kept):
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    monkeypatch.setattr(bus, "publish", endless)
    await validating(state)
    async with _running(_relay(state, bus, amqp_url, holder="a", seconds=0.4)):
        await began.wait()
        await state.lease("relay:events", "a", seconds=1).release()
        assert await state.lease("relay:events", "b", seconds=60).hold()

        async with asyncio.timeout(60):
            await ended.wait()

    assert await state.outbox.length("events") == 1


async def test_a_relay_is_cancelled_even_while_redis_is_down(
    redis_server: servers.Redis, bus: Bus, amqp_url: str
) -> None:
    state = State(redis_server.url)
    await validating(state)
    running = asyncio.create_task(_relay(state, bus, amqp_url).run())
    await eventually(lambda: _is_empty(state))
    redis_server.kill()

    running.cancel()

    with pytest.raises(asyncio.CancelledError):
        await running
    await state.close()


async def _is_down(bus: Bus) -> bool:
    try:
        await bus.ping()
    except TransientError:
        return True
    return False


def _relay(
    state: State,
    bus: Bus,
    amqp_url: str,
    box: Box = "events",
    *,
    holder: str = "a",
    seconds: float = 10.0,
) -> Relay:
    user = _user(amqp_url)
    return Relay(state, bus, box, holder=holder, service_user=user, lease_seconds=seconds)


def _user(amqp_url: str) -> str:
    return unquote(urlsplit(amqp_url).username or "")


async def _crash(*_: object) -> None:
    raise SystemExit


async def _is_empty(state: State) -> bool:
    return await state.outbox.length("events") == 0


async def _is_held_by(redis: Redis, namespace: str, holder: str) -> bool:
    return bool(await redis.get(f"{namespace}lease:relay:events") == holder)


def _types(messages: list[AbstractIncomingMessage], batch_id: str) -> list[str | None]:
    found = []
    for message in messages:
        # A repeat, if any, comes with the id of the first.
        if json.loads(message.body)["subject"] == batch_id and message.type not in found:
            found.append(message.type)
    return found


@asynccontextmanager
async def _running(relay: Relay) -> AsyncIterator[None]:
    task = asyncio.create_task(relay.run())
    try:
        yield
    finally:
        await end(task)


@asynccontextmanager
async def _subscriber(amqp_url: str) -> AsyncIterator[AbstractQueue]:
    async with await aio_pika.connect(amqp_url) as connection:
        channel = await connection.channel()
        queue = await channel.declare_queue(exclusive=True)
        await queue.bind(topology.EVENTS_EXCHANGE, "#")
        yield queue


@asynccontextmanager
async def _bound(amqp_url: str, name: str) -> AsyncIterator[str]:
    """A durable queue that outlives the broker."""
    async with await aio_pika.connect(amqp_url) as connection:
        channel = await connection.channel()
        queue = await channel.declare_queue(name, durable=True)
        await queue.bind(topology.EVENTS_EXCHANGE, "#")
    yield name
    async with await aio_pika.connect(amqp_url) as connection:
        await (await connection.channel()).queue_delete(name)


async def _all(queue: AbstractQueue) -> list[AbstractIncomingMessage]:
    messages = []
    while message := await queue.get(fail=False, no_ack=True):
        messages.append(message)
    return messages


async def _taken(amqp_url: str, name: str) -> list[AbstractIncomingMessage]:
    async with await aio_pika.connect(amqp_url) as connection:
        channel = await connection.channel()
        return await _all(await channel.get_queue(name))
