"""Relay, broker and subscribers, any of which may be away for a while."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any
from urllib.parse import unquote, urlsplit

import aio_pika
import pytest
from aio_pika.abc import AbstractQueue
from aiormq.exceptions import ChannelAccessRefused
from redis.asyncio import Redis

from cli import servers
from shared import ids
from shared.bus import topology
from shared.bus.connection import Bus
from shared.bus.relay import Relay
from shared.errors import TransientError
from shared.lifecycle import Event
from shared.slices import Claim
from shared.state import State
from shared.tasks import end
from tests.batches import accept_input, batch_fields, claim, feed, part, validating
from tests.eventually import eventually
from tests.proxy import proxied
from tests.servers import SERVICE, TENANT
from tests.subscriber import Subscriber

_BATCHES = 12
_QUORUM: dict[str, Any] = {"x-queue-type": "quorum"}


class _CrashError(Exception):
    """Stands for a SIGKILL."""


async def test_the_rules_give_the_right_states_whatever_dies_in_the_middle(
    state: State, bus: Bus, amqp_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert bus is not None
    async with AsyncExitStack() as stack:
        early = await stack.enter_async_context(_bound(amqp_url))
        proxy = await stack.enter_async_context(proxied(amqp_url))
        doomed = Bus(proxy.url)
        stack.push_async_callback(doomed.close)
        await doomed.connect()
        relay = _relay(state, doomed, amqp_url)
        batches = [await validating(state) for _ in range(_BATCHES)]
        late = early
        for number, step in enumerate(_life(state)):
            for batch_id in batches:
                await step(batch_id)
            with monkeypatch.context() as patch:
                match number % 3:
                    case 0:
                        await _die_before_the_removal(state, relay, patch)
                    case 1:
                        await _lose_the_connection(doomed, relay, proxy.cut, patch)
                    case _:
                        await _die_while_publishing(doomed, relay, patch)
            if number == 3:
                await _drain(state, relay)
                assert await relay.relay_progress() == _BATCHES
                late = await stack.enter_async_context(_bound(amqp_url))
        await _drain(state, relay)
        first, second = await _subscriber(early), await _subscriber(late)

    histories = await state.events.history(batches)
    kept = {
        ids.event_id(batch_id, int(entry.fields["sequence"]))
        for batch_id, history in zip(batches, histories, strict=True)
        for entry in history
    }
    for subscriber in (first, second):
        assert {_batch_of(source) for source in subscriber.states} == set(batches)
        for source, last in subscriber.states.items():
            assert (last["status"], last["request_counts"]["completed"]) == ("completed", 30)
            assert subscriber.sequences(source) == sorted(subscriber.sequences(source))
    assert kept <= {event_id for _, event_id in first.bodies}
    # Each crash before a removal repeats at least one event of each batch.
    assert first.repeats >= 3 * _BATCHES
    assert {types.count("batch.progress") for types in first.applied.values()} == {1}
    assert {types[-1] for types in first.applied.values()} == {"batch.completed"}
    # Who came late has missed what was before, and nothing else.
    assert all("batch.accepted" not in types for types in second.applied.values())
    assert second.states == first.states


async def test_a_relay_that_cannot_reach_the_broker_drops_progress_and_keeps_states(
    state: State, bus: Bus, amqp_url: str, redis: Redis, namespace: str
) -> None:
    assert bus is not None
    [life] = [list(_life(state))]
    async with _bound(amqp_url) as queue, proxied(amqp_url) as proxy:
        doomed = Bus(proxy.url)
        await doomed.connect()
        relay = _relay(state, doomed, amqp_url)
        batch_id = await validating(state)
        await life[0](batch_id)
        await _drain(state, relay)
        await life[3](batch_id)
        await _drain(state, relay)
        proxy.is_down = True
        proxy.cut()
        lost = await relay.relay_progress()
        await redis.hincrby(f"{namespace}batch:{batch_id}", "progress_ms", -10_000)
        await life[4](batch_id)
        await life[1](batch_id)
        # What waits for the broker is what happened to the batch, and no progress.
        waiting = await state.outbox.read("events", limit=99, wait_seconds=0)
        proxy.is_down = False
        await _drain(state, relay)
        subscriber = await _subscriber(queue)
        await doomed.close()

    assert lost == 1
    assert [entry.fields["type"] for entry in waiting] == ["slice.committed", "batch.paused"]
    [types] = subscriber.applied.values()
    assert types == [
        "batch.accepted",
        "batch.in_progress",
        "slice.committed",
        "slice.committed",
        "batch.paused",
    ]


async def test_progress_comes_no_more_often_than_the_deployment_wants(
    state: State, bus: Bus, amqp_url: str, redis: Redis, namespace: str
) -> None:
    [life] = [list(_life(state))]
    async with _bound(amqp_url) as queue:
        batch_id = await validating(state)
        await life[0](batch_id)
        await life[3](batch_id)
        relay = _relay(state, bus, amqp_url, progress_seconds=3600)
        running = asyncio.create_task(relay.run())
        await eventually(lambda: _has_no_progress(redis, namespace))
        await redis.hincrby(f"{namespace}batch:{batch_id}", "progress_ms", -10_000)
        await life[4](batch_id)
        # Rounds of the relay that could have taken it.
        for _ in range(3):
            await validating(state)
            await eventually(lambda: _is_empty(state))
        await end(running)
        subscriber = await _subscriber(queue)

    assert [types.count("batch.progress") for types in subscriber.applied.values()] == [1, 0, 0, 0]
    assert not await _has_no_progress(redis, namespace)


async def test_a_tenant_binds_to_all_one_type_or_one_batch_of_its_own(
    state: State, rabbitmq: servers.RabbitMQ
) -> None:
    bus = Bus(rabbitmq.url(SERVICE))
    await bus.connect()
    relay = _relay(state, bus, rabbitmq.url(SERVICE))
    one, other = f"batch_{secrets.token_hex(16)}", f"batch_{secrets.token_hex(16)}"
    keys = ("batch.*.acme.*", "batch.accepted.acme.*", f"batch.*.acme.{one}", "slice.*.acme.#")
    async with AsyncExitStack() as stack:
        queues = [
            await stack.enter_async_context(_bound(rabbitmq.url(TENANT), key)) for key in keys
        ]
        for batch_id, tenant in ((one, "acme"), (other, "acme"), ("batch_x", "globex")):
            await _submitted(state, batch_id, tenant)
        for claimed in await claim(state, slices=9):
            await state.claims.commit(claimed, part(claimed), announced=True)
        await _drain(state, relay)
        all_read = [await _subscriber(queue) for queue in queues]
    await bus.close()

    found = [
        {(_batch_of(source), types[0]) for source, types in t.applied.items()} for t in all_read
    ]
    counts = [[len(types) for types in t.applied.values()] for t in all_read]
    assert found == [
        {(one, "batch.accepted"), (other, "batch.accepted")},
        {(one, "batch.accepted"), (other, "batch.accepted")},
        {(one, "batch.accepted")},
        {(one, "slice.committed"), (other, "slice.committed")},
    ]
    assert counts == [[3, 3], [1, 1], [3], [2, 2]]


@pytest.mark.parametrize(
    "key",
    [
        "batch.*.globex.*",
        "*.*.*.batch_x",
        "#.batch_x",
        "slice.*.globex.batch_x",
        "request.quarantined.globex.*",
        "batch.progress.*.batch_x",
    ],
)
async def test_a_tenant_may_not_bind_to_anothers_batch(
    key: str, rabbitmq: servers.RabbitMQ
) -> None:
    with pytest.raises(ChannelAccessRefused):
        async with _bound(rabbitmq.url(TENANT), key):
            pass


def _life(state: State) -> Iterator[Callable[[str], Awaitable[object]]]:
    """What happens to a batch after it was accepted, step by step."""
    claims: dict[str, list[Claim]] = {}

    async def start(batch_id: str) -> None:
        await feed(state, batch_id, slices=3)
        claims[batch_id] = await claim(state, slices=3)
        await commit(batch_id)

    async def commit(batch_id: str) -> None:
        one = claims[batch_id].pop()
        await state.claims.commit(one, part(one), announced=True)

    return iter(
        (
            lambda batch_id: accept_input(state, batch_id, slices=3),
            state.controls.pause,
            state.controls.resume,
            start,
            commit,
            commit,
            lambda batch_id: state.apply(batch_id, Event.OUTPUT_COMMITTED),
        )
    )


async def _submitted(state: State, batch_id: str, tenant: str) -> None:
    fields = batch_fields(batch_id, tenant=tenant)
    await state.batches.accept(batch_id, "print", fields, input_file=None, submission=None)
    await accept_input(state, batch_id)
    await feed(state, batch_id)


async def _die_before_the_removal(state: State, relay: Relay, patch: pytest.MonkeyPatch) -> None:
    async def crash(*_: object) -> None:
        raise _CrashError

    patch.setattr(state.outbox, "remove", crash)
    with pytest.raises(_CrashError):
        # Until the connection is back.
        await eventually(lambda: _has_relayed(relay), 60)


async def _lose_the_connection(
    bus: Bus, relay: Relay, cut: Callable[[], int], patch: pytest.MonkeyPatch
) -> None:
    begun = _publishing(bus, patch)
    relaying = asyncio.create_task(relay.relay_some(wait_seconds=0))
    await begun.wait()
    assert cut() > 0
    await asyncio.gather(relaying, return_exceptions=True)


async def _die_while_publishing(bus: Bus, relay: Relay, patch: pytest.MonkeyPatch) -> None:
    begun = _publishing(bus, patch)
    running = asyncio.create_task(relay.run())
    await begun.wait()
    await end(running)


def _publishing(bus: Bus, patch: pytest.MonkeyPatch) -> asyncio.Event:
    """Set as soon as anything is about to be published."""
    publish, begun = bus.publish, asyncio.Event()

    async def telling(*arguments: Any, **more: Any) -> None:
        begun.set()
        await publish(*arguments, **more)

    patch.setattr(bus, "publish", telling)
    return begun


async def _drain(state: State, relay: Relay) -> None:
    async def has_drained() -> bool:
        await _has_relayed(relay)
        return await _is_empty(state)

    await eventually(has_drained, 60)


async def _has_relayed(relay: Relay) -> bool:
    with suppress(TransientError):
        await relay.relay_some(wait_seconds=0)
        return True
    return False


async def _is_empty(state: State) -> bool:
    return await state.outbox.length("events") == 0


async def _has_no_progress(redis: "Redis[str]", namespace: str) -> bool:
    return not await redis.exists(f"{namespace}progress", f"{namespace}progress-late")


def _relay(state: State, bus: Bus, amqp_url: str, *, progress_seconds: float = 1.0) -> Relay:
    user = unquote(urlsplit(amqp_url).username or "")
    return Relay(
        state, bus, "events", holder="a", service_user=user, progress_seconds=progress_seconds
    )


@asynccontextmanager
async def _bound(amqp_url: str, key: str = "#") -> AsyncIterator[AbstractQueue]:
    """A durable queue of the tenant's that gets these events."""
    async with await aio_pika.connect(amqp_url) as connection:
        channel = await connection.channel()
        queue = await channel.declare_queue(
            f"sub.acme.{secrets.token_hex(4)}", durable=True, arguments=_QUORUM
        )
        try:
            await queue.bind(topology.EVENTS_EXCHANGE, key)
            yield queue
        finally:
            # A refused binding has closed the first channel.
            await (await connection.channel()).queue_delete(queue.name)


async def _subscriber(queue: AbstractQueue) -> Subscriber:
    """What a subscriber makes of all that is in the queue."""
    subscriber = Subscriber()
    while message := await queue.get(fail=False):
        subscriber.take(message)
        await message.ack()
    return subscriber


def _batch_of(source: str) -> str:
    return source.rpartition("/")[2]
