"""The promises hold on real processes while the broker dies, blocks or is flooded."""

import asyncio
import json
import os
import re
import secrets
from collections import Counter
from itertools import count

import aio_pika
import psutil
import pytest
from aio_pika.abc import AbstractIncomingMessage

from shared.bus import dead_letters, topology
from tests.contract.processes import Process
from tests.eventually import eventually
from tests.faults.conftest import BrokerYard, submission
from tests.servers import SERVICE, TENANT

# Includes the start of the servers, on a busy machine.
pytestmark = pytest.mark.timeout(600)


async def test_a_broker_killed_under_load_loses_nothing_and_doubles_nothing(
    yard: BrokerYard, events: str
) -> None:
    run, confirmed, enough = secrets.token_hex(4), list[str](), asyncio.Event()

    async def by_bus(lane: int) -> None:
        for number in count():
            if enough.is_set():
                return
            confirmed.append(await yard.publish(f"{run}.{lane}.{number}"))

    lanes = [asyncio.create_task(by_bus(lane)) for lane in range(3)]
    made: list[str] = []
    for _ in range(2):
        goal = len(confirmed) + 5
        await eventually(lambda goal=goal: len(confirmed) >= goal, 60)  # type: ignore[misc]  # bound now
        made += [await yard.create(f"{run}-{number}") for number in range(len(made), len(made) + 5)]
        yard.rabbitmq.kill()
        made += [await yard.create(f"{run}-{number}") for number in range(len(made), len(made) + 5)]
        yard.rabbitmq.launch()
        await asyncio.to_thread(yard.rabbitmq.wait)
    enough.set()
    await asyncio.gather(*lanes)
    made += confirmed

    assert len(set(made)) == len(made)
    await yard.until_planned(made)
    await yard.until_published()
    published = [json.loads(message.body) for message in await yard.taken(events)]
    # A repeat, if any, has the id of the first; of each batch there are these two and no more.
    first = {event["id"]: event for event in published}
    kinds = Counter((event["subject"], event["type"]) for event in first.values())
    expected = [(one, kind) for one in made for kind in ("batch.accepted", "batch.in_progress")]
    assert [event for event in expected if kinds[event] != 1] == []
    assert {event["subject"] for event in published} == set(made)
    assert await yard.count(topology.DEAD_QUEUE) == 0


@pytest.mark.parametrize(
    ("raise_alarm", "end_alarm"),
    [
        ("set_disk_free_limit 1000000GB", "set_disk_free_limit 200MB"),
        ("set_vm_memory_high_watermark 0.00001", "set_vm_memory_high_watermark absolute 1GB"),
    ],
    ids=["disk", "memory"],
)
async def test_while_disk_or_memory_is_full_http_answers_and_messages_in_the_queue_are_taken(
    raise_alarm: str, end_alarm: str, yard: BrokerYard
) -> None:
    run = secrets.token_hex(4)
    yard.dispatcher.freeze()
    queued = [await yard.publish(f"{run}.{number}") for number in range(5)]
    yard.rabbitmq.ctl(*raise_alarm.split())
    try:
        publishing = asyncio.create_task(yard.publish(f"{run}.blocked"))
        made = [await yard.create(f"{run}-{number}") for number in range(5)]
        yard.dispatcher.thaw()

        await eventually(lambda: _says_that_it_is_blocked(yard), 30)
        # Acks are not blocked, and the dispatcher finds batches of HTTP without their message.
        await yard.until_planned([*queued, *made])
        assert not publishing.done()
        assert await yard.state.outbox.length("submissions") > 0
        assert await yard.state.outbox.length("events") > 0
    finally:
        yard.dispatcher.thaw()
        yard.rabbitmq.ctl(*end_alarm.split())

    await yard.until_planned([await publishing])
    await yard.until_published()


async def test_a_dispatcher_killed_before_its_ack_makes_the_batch_once_and_replies(
    yard: BrokerYard, events: str
) -> None:
    reply_to = f"reply.{TENANT.name}.{secrets.token_hex(4)}"
    async with await aio_pika.connect(yard.rabbitmq.url(TENANT)) as link:
        channel = await link.channel()
        await channel.declare_queue(
            reply_to, durable=True, arguments={"x-queue-type": "quorum", "x-expires": 600_000}
        )
    yard.dispatcher.stop()
    folder = yard.dispatcher.folder
    doomed = Process(
        "dispatcher", {**yard.environment, "BATCHYARD_CRASH_AT": "intake.done"}, folder
    )
    doomed.start()
    batch_id = await yard.publish(f"kill.{secrets.token_hex(4)}", reply_to=reply_to)
    await eventually(lambda: doomed.child.poll() is not None, 60)

    yard.dispatcher.start()
    await yard.until_planned([batch_id])
    await yard.until_published()

    replies: list[AbstractIncomingMessage] = []

    async def are_both() -> bool:
        # The first may come twice: the relay is killed too, and perhaps has just sent it.
        replies.extend(await yard.taken(reply_to))
        return {json.loads(message.body)["duplicate"] for message in replies} == {False, True}

    await eventually(are_both, 60)
    assert {json.loads(message.body)["batch"]["id"] for message in replies} == {batch_id}
    assert {message.message_id for message in replies} == {f"{batch_id}.reply"}
    published = [json.loads(message.body) for message in await yard.taken(events)]
    assert len({event["id"] for event in published if event["type"] == "batch.accepted"}) == 1


async def test_a_message_that_kills_the_dispatcher_each_time_ends_with_the_dead_letters(
    yard: BrokerYard,
) -> None:
    # As the queue's own limit, and lower: RabbitMQ goes by the least.
    limit = {"delivery-limit": 2}
    queue = f"^{re.escape(topology.SUBMIT_QUEUE)}$"
    few = ("--priority", "9", "--apply-to", "queues", "soon-dead", queue, json.dumps(limit))
    yard.dispatcher.stop()
    yard.rabbitmq.ctl("set_policy", *few)
    doomed = Process(
        "dispatcher",
        {**yard.environment, "BATCHYARD_CRASH_AT": "intake.begin"},
        yard.dispatcher.folder,
    )
    deaths, message_id = 0, f"deadly.{secrets.token_hex(4)}"
    batch_id = await yard.publish(message_id)

    async def is_back() -> bool:
        return await yard.count(topology.SUBMIT_QUEUE) + await yard.count(topology.DEAD_QUEUE) == 1

    try:
        while await yard.count(topology.DEAD_QUEUE) == 0:
            doomed.start()
            await eventually(lambda: doomed.child.poll() is not None, 60)
            deaths += 1
            await eventually(is_back, 30)
    finally:
        doomed.stop()
        yard.rabbitmq.ctl("clear_policy", "soon-dead")
        yard.dispatcher.start()

    assert deaths == limit["delivery-limit"] + 1
    [message] = await yard.taken(topology.DEAD_QUEUE)
    letter = dead_letters.read(message, service_user=SERVICE.name)
    assert (letter.by, [reason.code for reason in letter.reasons]) == ("broker", ["delivery_limit"])
    assert (letter.user, letter.properties["message_id"]) == (TENANT.name, message_id)
    assert letter.body == submission()
    assert await yard.state.batches.statuses([batch_id]) == {}
    await yard.until_planned([await yard.publish(f"next.{message_id}")])


async def test_a_flood_of_messages_keeps_http_answering(yard: BrokerYard) -> None:
    await _flood(yard, messages=150)


@pytest.mark.on_demand
@pytest.mark.timeout(3600)
async def test_a_flood_of_ten_thousand_messages_in_bounded_memory(yard: BrokerYard) -> None:
    figures = await _flood(yard, messages=int(os.environ.get("FLOOD_MESSAGES", "10000")))

    print("flood:", json.dumps(figures))  # noqa: T201  # what the run is for
    assert figures["dispatcher_growth_mb"] < 200


async def _says_that_it_is_blocked(yard: BrokerYard) -> bool:
    ready = await yard.http.get("/readyz")
    report = ready.json()["rabbitmq"]
    return ready.status_code == 503 and report == "takes no messages: its alarm is on"


async def _flood(yard: BrokerYard, *, messages: int) -> dict[str, float]:
    """Publish `messages` at once, and call HTTP until all of them are batches."""
    run = secrets.token_hex(4)
    dispatcher = psutil.Process(yard.dispatcher.child.pid)
    before = peak = dispatcher.memory_info().rss
    calls: list[float] = []
    loop = asyncio.get_running_loop()
    began = loop.time()
    names = [f"{run}.{number}" for number in range(messages)]
    publishing = asyncio.create_task(yard.publish_all(names))

    async def is_over() -> bool:
        return publishing.done() and await yard.count(topology.SUBMIT_QUEUE) == 0

    while not await is_over():
        called = loop.time()
        await yard.create(f"{run}-{len(calls)}")
        calls.append(loop.time() - called)
        peak = max(peak, dispatcher.memory_info().rss)
    await publishing
    seconds = loop.time() - began

    async def are_made() -> bool:
        from shared import ids

        wanted = [ids.batch_id(TENANT.name, name) for name in names]
        return len(await yard.state.batches.statuses(wanted)) == messages

    await eventually(are_made, 60)
    assert calls
    assert await yard.count(topology.DEAD_QUEUE) == 0
    ordered = sorted(calls)
    return {
        "messages": messages,
        "seconds": round(seconds, 1),
        "messages_per_second": round(messages / seconds, 1),
        "http_calls": len(calls),
        "http_p50_ms": round(1000 * ordered[len(ordered) // 2]),
        "http_p99_ms": round(1000 * ordered[int(len(ordered) * 0.99)]),
        "dispatcher_growth_mb": round((peak - before) / 1e6, 1),
    }
