"""Looks at RabbitMQ: its version, its alarms, and whether it holds what the fleet needs."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import aio_pika
from aio_pika.exceptions import AMQPException, ChannelPreconditionFailed
from aiormq.exceptions import ChannelAccessRefused, ProbableAuthenticationError

from cli.doctor import finding
from cli.doctor.finding import Finding, Level
from shared.bus import topology
from shared.bus.broker_errors import BlockedError
from shared.bus.connection import Bus
from shared.errors import SetupError, TransientError

_PLACE = "rabbitmq"
_SECONDS = 5.0
#: A broker whose alarm is on never confirms.
_CONFIRM_SECONDS = 10.0
#: There is no such queue, so the broker confirms the message and drops it.
_NOWHERE = "batchyard.doctor"
#: What `rabbitmqctl list_policies` prints as JSON, for a broker whose machine this is.
Policies = Callable[[], str]


async def look(url: str, policies: Policies | None) -> AsyncIterator[Finding]:
    """What the broker says over AMQP, and its policies, which it does not show there."""
    try:
        connection = await aio_pika.connect(url, timeout=_SECONDS)
    except (ProbableAuthenticationError, ChannelAccessRefused):
        do = "Compare BATCHYARD_AMQP_URL with the broker's users: `rabbitmqctl list_users`."
        yield Finding(_PLACE, Level.FAILED, "it refuses the login", do)
        return
    except (AMQPException, OSError, TimeoutError) as error:
        text = f"it does not answer ({type(error).__name__})"
        yield Finding(_PLACE, Level.FAILED, text, "Start it, or correct BATCHYARD_AMQP_URL.")
        return
    async with connection:
        yield finding.rabbitmq_version(_version(connection))
        async for found in _queues(connection):
            yield found
    if not await _takes_messages(url):
        text = "it takes no messages: its memory or disk alarm is on"
        do = "`rabbitmq-diagnostics alarms` says which; free memory or disk at the broker."
        yield Finding(_PLACE, Level.FAILED, text, do)
    async for found in _bus(url):
        yield found
    do = "Compare `rabbitmqctl list_policies` with what `batchyard topology` prints."
    if policies is None:
        yield Finding(_PLACE, Level.SKIPPED, "its policies cannot be seen over AMQP", do)
        return
    try:
        held = policies()
    except SetupError as error:
        yield Finding(_PLACE, Level.SKIPPED, f"its policies cannot be listed: {error}", do)
        return
    for found in _policies(json.loads(held)):
        yield found


def _version(connection: Any) -> str:
    said = connection.transport.connection.server_properties.get("version", "")
    return said.decode() if isinstance(said, bytes) else str(said)


async def _queues(connection: Any) -> AsyncIterator[Finding]:
    """Whether our queues are there, with our arguments: declaring one again changes nothing."""
    for name, arguments in topology.QUEUE_ARGUMENTS.items():
        try:
            async with connection.channel() as channel:
                await channel.declare_queue(name, passive=True, timeout=_SECONDS)
            async with connection.channel() as channel:
                await channel.declare_queue(
                    name, durable=True, arguments=dict(arguments), timeout=_SECONDS
                )
        except ChannelPreconditionFailed as error:
            do = "Delete it when it is empty, and restart gateway and dispatcher."
            text = f"the queue '{name}' has other arguments: {error}"
            yield Finding(_PLACE, Level.FAILED, text, do)
        except ChannelAccessRefused:
            # This login declares nothing: that the queue is there has to do.
            yield Finding(_PLACE, Level.OK, f"the queue '{name}' is there")
        except AMQPException:
            do = "Restart gateway and dispatcher, or load what `batchyard topology` prints."
            yield Finding(_PLACE, Level.FAILED, f"the queue '{name}' is missing", do)
        else:
            yield Finding(_PLACE, Level.OK, f"the queue '{name}' is as it should be")


async def _takes_messages(url: str) -> bool:
    """Whether it confirms a message: it tells of an alarm only those who publish."""
    connection = await aio_pika.connect(url, timeout=_SECONDS)
    try:
        async with asyncio.timeout(_CONFIRM_SECONDS):
            channel = await connection.channel()
            # With an alarm it still confirms the first one, and then reads no more.
            for _ in range(2):
                await channel.default_exchange.publish(
                    aio_pika.Message(b""), _NOWHERE, mandatory=False
                )
    except TimeoutError:
        return False
    except AMQPException:
        # This login may not publish there, so nothing is known.
        return True
    finally:
        with contextlib.suppress(TimeoutError):
            # A broker that blocks a connection does not read that it is closed.
            await asyncio.wait_for(connection.close(), _SECONDS)
    return True


async def _bus(url: str) -> AsyncIterator[Finding]:
    bus = Bus(url)
    try:
        await bus.connect(declares=False)
        await bus.ping()
        if dead := await bus.depth(topology.DEAD_QUEUE):
            do = "See them: batchyard dead-letters ls"
            yield Finding(_PLACE, Level.WARNING, f"{dead} dead letters wait", do)
    except BlockedError:
        # It was found before.
        return
    except (SetupError, TransientError) as error:
        do = "Load what `batchyard topology --definitions` prints."
        yield Finding(_PLACE, Level.FAILED, str(error), do)
    finally:
        await bus.close()


def _policies(found: list[dict[str, Any]]) -> list[Finding]:
    """Whether the bounds of queues hold; RabbitMQ's own list has definitions as text."""
    held = {row["name"]: (row["pattern"], _definition(row)) for row in found}
    findings = []
    for wanted in topology.definitions([])["policies"]:
        name = wanted["name"]
        if held.get(name) == (wanted["pattern"], wanted["definition"]):
            findings.append(Finding(_PLACE, Level.OK, f"the policy '{name}' is as it should be"))
            continue
        state = "differs" if name in held else "is missing"
        text = f"the policy '{name}' {state}, so its queues have no bound or another one"
        definition = json.dumps(wanted["definition"])
        do = f"rabbitmqctl set_policy --apply-to queues {name} '{wanted['pattern']}' '{definition}'"
        findings.append(Finding(_PLACE, Level.FAILED, text, do))
    return findings


def _definition(row: dict[str, Any]) -> Any:
    definition = row["definition"]
    return json.loads(definition) if isinstance(definition, str) else definition
