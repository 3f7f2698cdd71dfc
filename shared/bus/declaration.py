"""The topology on a broker: declare it, or require that it exists.

The queue of live calls is declared by those who read it: a broker can do without it.
"""

import aio_pika
from aio_pika.abc import AbstractChannel, AbstractConnection, AbstractQueue
from aio_pika.exceptions import ChannelNotFoundEntity

from shared.bus import topology
from shared.bus.broker_errors import PATIENCE
from shared.errors import SetupError


async def declare(channel: AbstractChannel) -> None:
    """Declare all exchanges, and the required queues with their bindings."""
    for name, kind in topology.EXCHANGE_TYPES.items():
        await channel.declare_exchange(
            name, aio_pika.ExchangeType(kind), durable=True, timeout=PATIENCE
        )
    for name in topology.REQUIRED_QUEUES:
        await declare_queue(channel, name)


async def declare_queue(channel: AbstractChannel, name: str) -> AbstractQueue:
    """Declare a queue of ours with its bindings."""
    queue = await channel.declare_queue(
        name, durable=True, arguments=dict(topology.QUEUE_ARGUMENTS[name]), timeout=PATIENCE
    )
    for source, destination, key in topology.BINDINGS:
        if destination == name:
            await queue.bind(source, key, timeout=PATIENCE)
    return queue


async def require(url: str) -> None:
    """Raise SetupError that names all missing exchanges and required queues."""
    async with await aio_pika.connect(url, timeout=PATIENCE) as connection:
        missing = [
            f"{kind} '{name}'"
            for kind, names in (
                ("exchange", topology.EXCHANGE_TYPES),
                ("queue", topology.REQUIRED_QUEUES),
            )
            for name in names
            if not await _exists(connection, kind, name)
        ]
    if missing:
        raise SetupError(
            f"RabbitMQ lacks the {', the '.join(missing)}, and BATCHYARD_DECLARE_TOPOLOGY=false "
            "says not to make them. Give it what `batchyard topology --definitions` prints."
        )


async def _exists(connection: AbstractConnection, kind: str, name: str) -> bool:
    # On separate channels: the first missing name closes its channel.
    async with connection.channel() as channel:
        try:
            await (channel.get_exchange if kind == "exchange" else channel.get_queue)(name)
        except ChannelNotFoundEntity:
            return False
    return True
