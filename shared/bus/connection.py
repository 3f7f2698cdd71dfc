"""RabbitMQ: the one class that talks to the broker.

One connection publishes and another one consumes, so that a blocked publisher never stops acks.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, cast
from urllib.parse import unquote, urlsplit

import aio_pika
from aio_pika.abc import (
    AbstractChannel,
    AbstractIncomingMessage,
    AbstractQueue,
    AbstractRobustConnection,
    HeadersType,
)
from aio_pika.exceptions import (
    ChannelPreconditionFailed,
    DeliveryError,
)
from aiormq import Channel, spec
from aiormq.exceptions import ChannelAccessRefused

from shared.bus import topology, unreadable
from shared.bus.broker_errors import (
    CONNECTION_ERRORS,
    PATIENCE,
    BlockedError,
    RefusedError,
    UnroutableError,
    foreign_cancellation_as,
)
from shared.bus.declaration import declare, require
from shared.bus.direct_replies import DirectReplies
from shared.bus.subscription import Handler, Subscription
from shared.call_times import timed
from shared.errors import SetupError, TransientError

unreadable.install()

#: Heartbeats notice a vanished broker; reconnects come once a second.
_CONNECTION = "heartbeat=10&reconnect_interval=1"
#: How long a publisher waits for the next connection: two attempts.
_RECONNECT_SECONDS = 3.0
#: A broker that does not block publishers says so at once.
_BLOCKED_SECONDS = 0.2


class Bus:
    """Publishing with confirms, and one consumer."""

    def __init__(self, url: str) -> None:
        self._declares = True
        self._url = f"{url}{'&' if '?' in url else '?'}{_CONNECTION}"
        self._publishing: AbstractRobustConnection | None = None
        self._subscription: Subscription | None = None
        self._channel: AbstractChannel | None = None
        self._direct = DirectReplies(self._url)

    @property
    def user(self) -> str:
        """Our login, the only user as whom the broker lets us publish."""
        return unquote(urlsplit(self._url).username or "guest")

    async def connect(self, *, declares: bool = True) -> None:
        """Open the publishing connection, and make the topology if it is missing.

        With `declares=False` nothing is made: what is missing is a SetupError that names all of it,
        as is a broker that does not let us make it, or holds something else under a name of ours.
        Raises TransientError when the broker cannot be reached.
        """
        self._declares = declares
        try:
            if not declares:
                await require(self._url)
            self._publishing = await aio_pika.connect_robust(self._url, timeout=PATIENCE)
            channel = await self._publishing.channel(publisher_confirms=True, on_return_raises=True)
            if declares:
                # On the lasting channel, so that a broker that comes back empty gets it all again.
                await declare(channel)
            self._channel = channel
        except (ChannelAccessRefused, ChannelPreconditionFailed) as error:
            await self.close()
            raise SetupError(
                f"RabbitMQ does not let us declare exchanges and queues: {error}. Give it what "
                "`batchyard topology --definitions` prints, and set "
                "BATCHYARD_DECLARE_TOPOLOGY=false."
            ) from error
        except CONNECTION_ERRORS as error:
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
        Raises TransientError when the outcome is unknown (send the same message again), with
        UnroutableError when `mandatory` and no queue took it, and RefusedError when it was full.
        """
        if self._channel is None:
            raise TransientError("RabbitMQ is not connected.")
        try:
            lost = TransientError("RabbitMQ was lost before its confirm.")
            with timed("rabbitmq"), foreign_cancellation_as(lost):
                # Without a limit, aio-pika waits forever for the next connection. A connection that
                # is there needs no timer, which would be most of what the call costs.
                async with asyncio.timeout(None if self._is_connected else _RECONNECT_SECONDS):
                    # Its declared type lacks `wait`.
                    channel = cast("Channel", await self._channel.get_underlay_channel())
                # An exchange's own `publish` waits for the message to leave before the next one.
                await channel.basic_publish(
                    body,
                    exchange=exchange,
                    routing_key=routing_key,
                    properties=_properties(properties, headers),
                    mandatory=mandatory,
                    timeout=PATIENCE,
                    wait=False,
                )
        except DeliveryError as error:
            if mandatory and error.frame.name == "Basic.Return":
                raise UnroutableError(f"No queue is bound for {routing_key}.") from error
            raise RefusedError(f"RabbitMQ refused the message: {error}") from error
        except CONNECTION_ERRORS as error:
            raise TransientError(f"RabbitMQ: {error!r}") from error

    async def reply(
        self,
        address: str,
        body: bytes,
        *,
        properties: Mapping[str, str | datetime],
        headers: HeadersType | None = None,
    ) -> None:
        """Publish to the queue that a sender named, or to its direct reply-to.

        Raises as `publish` does.
        """
        if address.startswith(topology.DIRECT_REPLY):
            await self._direct.send(address, body, _properties(properties, headers))
        else:
            await self.publish(
                "", address, body, properties=properties, headers=headers, mandatory=True
            )

    async def consume(self, handler: Handler, *, prefetch: int = 64) -> None:
        """Hand each batch message to `handler`, which acks or rejects it within milliseconds.

        Subscribes again after every loss, until `close`. Raises TransientError if the first attempt
        fails.
        """
        self._subscription = Subscription(
            self._url, topology.SUBMIT_QUEUE, handler, prefetch=prefetch
        )
        await self._subscription.open()

    def consume_live(self, handler: Handler, *, prefetch: int) -> None:
        """Hand each live call to `handler`, which acks it when it has its answer.

        Subscribes as soon as the queue is there, and again after every loss, until `end_consuming`
        or `close`.
        """
        self._subscription = Subscription(
            self._url, topology.LIVE_QUEUE, handler, prefetch=prefetch, declares=self._declares
        )
        self._subscription.open_soon()

    async def end_consuming(self) -> None:
        """Take no more messages. Those that were not acked return to their queue."""
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            await subscription.close()

    @asynccontextmanager
    async def holding(self, queue: str) -> AsyncIterator[AsyncIterator[AbstractIncomingMessage]]:
        """The messages in a queue, one by one. Afterwards all that were not acked return to it.

        Until then no other consumer sees them. Raises TransientError.
        """
        try:
            connection = await aio_pika.connect(self._url, timeout=PATIENCE)
            async with connection:
                channel = await connection.channel()
                source = await channel.get_queue(queue)
                yield _each(source)
                # Before the channel closes, so that the next reader finds all of them.
                underlay = await channel.get_underlay_channel()
                await underlay.basic_nack(0, multiple=True, requeue=True)
        except CONNECTION_ERRORS as error:
            raise TransientError(f"RabbitMQ: {error!r}") from error

    @property
    def _is_connected(self) -> bool:
        return self._publishing is not None and self._publishing.connected.is_set()

    async def depth(self, queue: str) -> int:
        """How many messages are in a queue of ours. Raises TransientError."""
        if self._publishing is None:
            raise TransientError("RabbitMQ is not connected.")
        try:
            async with asyncio.timeout(PATIENCE), self._publishing.channel() as channel:
                found = await channel.declare_queue(queue, passive=True, timeout=PATIENCE)
        except CONNECTION_ERRORS as error:
            raise TransientError(f"RabbitMQ: {error!r}") from error
        return found.declaration_result.message_count or 0

    async def ping(self) -> None:
        """Raise TransientError if the broker is not connected, and BlockedError while it blocks."""
        if self._publishing is None or not self._is_connected:
            raise TransientError("RabbitMQ is not connected.")
        if (transport := self._publishing.transport) is not None:
            try:
                async with asyncio.timeout(_BLOCKED_SECONDS):
                    await transport.connection.ready()
            except TimeoutError as error:
                raise BlockedError("RabbitMQ blocks publishers.") from error

    async def close(self) -> None:
        """Stop consuming, then close all connections."""
        await self.end_consuming()
        await self._direct.close()
        if self._publishing is not None:
            await self._publishing.close()


def _properties(
    properties: Mapping[str, str | datetime], headers: HeadersType | None
) -> spec.Basic.Properties:
    """The properties of a persistent message; aio-pika's own Message costs several times more."""
    others: dict[str, Any] = dict(properties)
    kind = others.pop("type", None)
    return spec.Basic.Properties(
        delivery_mode=aio_pika.DeliveryMode.PERSISTENT.value,
        app_id="batchyard",
        message_type=kind,
        headers=headers,
        **others,
    )


async def _each(queue: AbstractQueue) -> AsyncIterator[AbstractIncomingMessage]:
    while (message := await queue.get(fail=False, timeout=PATIENCE)) is not None:
        yield message
