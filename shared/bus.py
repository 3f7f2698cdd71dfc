"""RabbitMQ: the one class that talks to the broker.

One connection publishes and another one consumes, so that a blocked publisher never stops acks.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime

import aio_pika
import structlog
from aio_pika.abc import (
    AbstractExchange,
    AbstractIncomingMessage,
    AbstractRobustConnection,
    HeadersType,
)
from aio_pika.exceptions import AMQPError, DeliveryError

from shared import topology
from shared.errors import TransientError

log = structlog.get_logger()

#: Seconds for any single exchange with the broker; an unanswered one has an unknown outcome.
_PATIENCE = 10.0
#: Heartbeats notice a vanished broker; reconnects come once a second.
_CONNECTION = "heartbeat=10&reconnect_interval=1"
_NETWORK_ERRORS = (AMQPError, ConnectionError, TimeoutError, RuntimeError)

Handler = Callable[[AbstractIncomingMessage], Awaitable[None]]


class UnroutableError(TransientError):
    """No queue took the message."""


class Bus:
    """Publishing with confirms, and one consumer of batch messages."""

    def __init__(self, url: str) -> None:
        self._url = f"{url}{'&' if '?' in url else '?'}{_CONNECTION}"
        self._publishing: AbstractRobustConnection | None = None
        self._consuming: AbstractRobustConnection | None = None
        self._exchanges: dict[str, AbstractExchange] = {}

    async def connect(self) -> None:
        """Open the publishing connection and make the topology if it is missing.

        Raises TransientError when the broker cannot be reached.
        """
        try:
            self._publishing = await aio_pika.connect_robust(self._url, timeout=_PATIENCE)
            channel = await self._publishing.channel(publisher_confirms=True, on_return_raises=True)
            for name, kind in topology.EXCHANGE_TYPES.items():
                self._exchanges[name] = await channel.declare_exchange(
                    name, aio_pika.ExchangeType(kind), durable=True, timeout=_PATIENCE
                )
            self._exchanges[""] = channel.default_exchange
            submit = await channel.declare_queue(
                topology.SUBMIT_QUEUE,
                durable=True,
                arguments=dict(topology.SUBMIT_QUEUE_ARGUMENTS),
                timeout=_PATIENCE,
            )
            await submit.bind(topology.SUBMIT_EXCHANGE, "#", timeout=_PATIENCE)
            dead = await channel.declare_queue(
                topology.DEAD_QUEUE,
                durable=True,
                arguments=dict(topology.DEAD_QUEUE_ARGUMENTS),
                timeout=_PATIENCE,
            )
            await dead.bind(topology.DEAD_EXCHANGE, topology.DEAD_KEY, timeout=_PATIENCE)
        except _NETWORK_ERRORS as error:
            await self.close()
            raise TransientError(f"RabbitMQ cannot be reached: {error!r}") from error

    async def publish(
        self,
        exchange: str,
        routing_key: str,
        body: bytes,
        *,
        properties: Mapping[str, str | datetime],
        headers: HeadersType | None = None,
        mandatory: bool = False,
    ) -> None:
        """Publish one persistent message and wait for the broker's confirm.

        `properties` are message_id, type, content_type, correlation_id, user_id and timestamp.
        Raises TransientError when the outcome is unknown or refused (send the same message again),
        and UnroutableError when `mandatory` and no queue took it.
        """
        message = aio_pika.Message(
            body,
            delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
            app_id="batchyard",
            headers=headers,
            **properties,  # type: ignore[arg-type]  # texts, and a time as timestamp
        )
        try:
            await self._exchanges[exchange].publish(
                message, routing_key, mandatory=mandatory, timeout=_PATIENCE
            )
        except asyncio.CancelledError as error:
            # aiormq 7.2 cancels the waiters of a connection that it declares stuck; only a task
            # that somebody asked to stop may see that as its own cancellation.
            if (task := asyncio.current_task()) is None or task.cancelling():
                raise
            raise TransientError("RabbitMQ was lost before its confirm.") from error
        except DeliveryError as error:
            if mandatory and error.frame.name == "Basic.Return":
                raise UnroutableError(f"No queue is bound for {routing_key}.") from error
            raise TransientError(f"RabbitMQ refused the message: {error}") from error
        except _NETWORK_ERRORS as error:
            raise TransientError(f"RabbitMQ: {error!r}") from error

    async def consume(self, handler: Handler, *, prefetch: int = 64) -> None:
        """Hand each batch message to `handler`, which acks or rejects it, within milliseconds.

        The robust connection subscribes again after every loss, until `close`.
        """
        try:
            self._consuming = await aio_pika.connect_robust(self._url, timeout=_PATIENCE)
            channel = await self._consuming.channel()
            await channel.set_qos(prefetch_count=prefetch, timeout=_PATIENCE)
            queue = await channel.get_queue(topology.SUBMIT_QUEUE)
            await queue.consume(handler, timeout=_PATIENCE)
        except _NETWORK_ERRORS as error:
            raise TransientError(f"RabbitMQ cannot be reached: {error!r}") from error

    async def depth(self, queue: str) -> int:
        """How many messages lie in a queue of ours. Raises TransientError."""
        if self._publishing is None:
            raise TransientError("RabbitMQ is not connected.")
        try:
            async with self._publishing.channel() as channel:
                found = await channel.declare_queue(queue, passive=True, timeout=_PATIENCE)
        except _NETWORK_ERRORS as error:
            raise TransientError(f"RabbitMQ: {error!r}") from error
        return found.declaration_result.message_count or 0

    async def ping(self) -> None:
        """Raise TransientError when the broker is not connected."""
        if self._publishing is None or not self._publishing.connected.is_set():
            raise TransientError("RabbitMQ is not connected.")

    async def close(self) -> None:
        """Stop consuming, then close both connections."""
        for connection in (self._consuming, self._publishing):
            if connection is not None:
                await connection.close()
