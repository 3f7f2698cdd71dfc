"""RabbitMQ: the one class that talks to the broker.

One connection publishes and another one consumes, so that a blocked publisher never stops acks.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import datetime
from typing import Any, cast
from urllib.parse import unquote, urlsplit

import aio_pika
import structlog
from aio_pika.abc import (
    AbstractChannel,
    AbstractConnection,
    AbstractIncomingMessage,
    AbstractQueue,
    AbstractRobustConnection,
    HeadersType,
)
from aio_pika.exceptions import (
    AMQPError,
    ChannelNotFoundEntity,
    ChannelPreconditionFailed,
    DeliveryError,
)
from aiormq import Channel, spec
from aiormq.abc import AbstractChannel as UnderlayChannel
from aiormq.exceptions import ChannelAccessRefused

from shared.bus import topology, unreadable
from shared.errors import SetupError, TransientError
from shared.tasks import end

unreadable.install()
log = structlog.get_logger()

#: Seconds for one exchange with the broker. Without an answer, its outcome is unknown.
_PATIENCE = 10.0
#: Heartbeats notice a vanished broker; reconnects come once a second.
_CONNECTION = "heartbeat=10&reconnect_interval=1"
#: How long a publisher waits for the next connection: two attempts.
_RECONNECT_SECONDS = 3.0
#: What aio-pika raises when the connection or channel is gone.
CONNECTION_ERRORS = (AMQPError, ConnectionError, TimeoutError, RuntimeError)

#: A broker that does not block publishers says so at once.
_BLOCKED_SECONDS = 0.2
#: How often the subscription is checked, in case it was lost silently.
_LISTEN_CHECK_SECONDS = 15.0

Handler = Callable[[AbstractIncomingMessage], Awaitable[None]]


class UnroutableError(TransientError):
    """No queue took the message."""


class RefusedError(TransientError):
    """The queue is full, or no broker can read the address."""


class BlockedError(TransientError):
    """The broker accepts no messages because its disk or memory alarm is on."""


class Bus:
    """Publishing with confirms, and one consumer of batch messages."""

    def __init__(self, url: str) -> None:
        self._url = f"{url}{'&' if '?' in url else '?'}{_CONNECTION}"
        self._publishing: AbstractRobustConnection | None = None
        self._consuming: AbstractConnection | None = None
        self._listening: asyncio.Task[None] | None = None
        self._channel: AbstractChannel | None = None
        self._direct = _DirectReplies(self._url)

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
        try:
            if not declares:
                await _require(self._url)
            self._publishing = await aio_pika.connect_robust(self._url, timeout=_PATIENCE)
            channel = await self._publishing.channel(publisher_confirms=True, on_return_raises=True)
            if declares:
                # On the lasting channel, so that a broker that comes back empty gets it all again.
                await _declare(channel)
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
            with _unasked_cancellation_as(TransientError("RabbitMQ was lost before its confirm.")):
                # Without a limit, aio-pika waits for ever for the next connection.
                async with asyncio.timeout(_RECONNECT_SECONDS):
                    # Its declared type lacks `wait`.
                    channel = cast("Channel", await self._channel.get_underlay_channel())
                # An exchange's own `publish` waits for the message to leave before the next one.
                await channel.basic_publish(
                    body,
                    exchange=exchange,
                    routing_key=routing_key,
                    properties=_properties(properties, headers),
                    mandatory=mandatory,
                    timeout=_PATIENCE,
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
        lost = await self._subscribe(handler, prefetch)
        self._listening = asyncio.create_task(self._keep_listening(lost, handler, prefetch))

    async def _subscribe(self, handler: Handler, prefetch: int) -> asyncio.Event:
        """Return an event that is set when the subscription ends."""
        lost = asyncio.Event()
        try:
            with _unasked_cancellation_as(TransientError("RabbitMQ was lost.")):
                # Not aio-pika's robust connection: if it is lost again while it restores its
                # consumers, it stays connected and receives nothing.
                self._consuming = await aio_pika.connect(self._url, timeout=_PATIENCE)
                self._consuming.close_callbacks.add(lambda *_: lost.set())
                channel = await self._consuming.channel()
                channel.close_callbacks.add(lambda *_: lost.set())
                await channel.set_qos(prefetch_count=prefetch, timeout=_PATIENCE)
                queue = await channel.get_queue(topology.SUBMIT_QUEUE)
                await queue.consume(handler, timeout=_PATIENCE)
        except CONNECTION_ERRORS as error:
            raise TransientError(f"RabbitMQ cannot be reached: {error!r}") from error
        return lost

    async def _keep_listening(self, lost: asyncio.Event, handler: Handler, prefetch: int) -> None:
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(lost.wait(), _LISTEN_CHECK_SECONDS)
            if not lost.is_set() and await self._is_subscribed():
                continue
            log.warning("bus.subscribes_again")
            try:
                await self._end_consuming()
                lost = await self._subscribe(handler, prefetch)
            except TransientError as error:
                log.warning("bus.not_subscribed", reason=str(error))
                lost.set()
                await asyncio.sleep(1)

    async def _is_subscribed(self) -> bool:
        """Whether a consumer is left: the broker may cancel it and keep its channel."""
        if self._consuming is None:
            return False
        try:
            with _unasked_cancellation_as(TransientError("RabbitMQ was lost.")):
                async with asyncio.timeout(_PATIENCE):
                    channel = await self._consuming.channel()
                    queue = await channel.declare_queue(topology.SUBMIT_QUEUE, passive=True)
                    await channel.close()
        except (TransientError, *CONNECTION_ERRORS):
            return False
        return bool(queue.declaration_result.consumer_count)

    async def _end_consuming(self) -> None:
        connection, self._consuming = self._consuming, None
        if connection is not None:
            with (
                suppress(TransientError, *CONNECTION_ERRORS),
                _unasked_cancellation_as(TransientError("RabbitMQ was lost.")),
            ):
                await asyncio.wait_for(connection.close(), _PATIENCE)

    @asynccontextmanager
    async def holding(self, queue: str) -> AsyncIterator[AsyncIterator[AbstractIncomingMessage]]:
        """The messages in a queue, one by one. Afterwards all that were not acked return to it.

        Meanwhile nobody else sees them. Raises TransientError.
        """
        try:
            connection = await aio_pika.connect(self._url, timeout=_PATIENCE)
            async with connection:
                channel = await connection.channel()
                source = await channel.get_queue(queue)
                yield _each(source)
                # Before the channel closes, so that the next reader finds all of them.
                underlay = await channel.get_underlay_channel()
                await underlay.basic_nack(0, multiple=True, requeue=True)
        except CONNECTION_ERRORS as error:
            raise TransientError(f"RabbitMQ: {error!r}") from error

    async def depth(self, queue: str) -> int:
        """How many messages are in a queue of ours. Raises TransientError."""
        if self._publishing is None:
            raise TransientError("RabbitMQ is not connected.")
        try:
            async with asyncio.timeout(_PATIENCE), self._publishing.channel() as channel:
                found = await channel.declare_queue(queue, passive=True, timeout=_PATIENCE)
        except CONNECTION_ERRORS as error:
            raise TransientError(f"RabbitMQ: {error!r}") from error
        return found.declaration_result.message_count or 0

    async def ping(self) -> None:
        """Raise TransientError if the broker is not connected, and BlockedError while it blocks."""
        if self._publishing is None or not self._publishing.connected.is_set():
            raise TransientError("RabbitMQ is not connected.")
        if (transport := self._publishing.transport) is not None:
            try:
                async with asyncio.timeout(_BLOCKED_SECONDS):
                    await transport.connection.ready()
            except TimeoutError as error:
                raise BlockedError("RabbitMQ blocks publishers.") from error

    async def close(self) -> None:
        """Stop consuming, then close all connections."""
        if self._listening is not None:
            await end(self._listening)
        await self._end_consuming()
        await self._direct.close()
        if self._publishing is not None:
            await self._publishing.close()


@contextmanager
def _unasked_cancellation_as(loss: TransientError) -> Iterator[None]:
    """Raise `loss` for a cancellation that nobody has asked this task for.

    aiormq 7.2 cancels the waiters of a connection that it declares stuck.
    """
    try:
        yield
    except asyncio.CancelledError as error:
        if (task := asyncio.current_task()) is None or task.cancelling():
            raise
        raise loss from error


async def _declare(channel: AbstractChannel) -> None:
    for name, kind in topology.EXCHANGE_TYPES.items():
        await channel.declare_exchange(
            name, aio_pika.ExchangeType(kind), durable=True, timeout=_PATIENCE
        )
    for name, arguments in topology.QUEUE_ARGUMENTS.items():
        await channel.declare_queue(
            name, durable=True, arguments=dict(arguments), timeout=_PATIENCE
        )
    for source, name, key in topology.BINDINGS:
        queue = await channel.get_queue(name)
        await queue.bind(source, key, timeout=_PATIENCE)


async def _require(url: str) -> None:
    async with await aio_pika.connect(url, timeout=_PATIENCE) as connection:
        missing = [
            f"{kind} '{name}'"
            for kind, names in (
                ("exchange", topology.EXCHANGE_TYPES),
                ("queue", topology.QUEUE_ARGUMENTS),
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


class _DirectReplies:
    """Answers to direct reply-to, one at a time on a separate connection.

    The sender chooses the address, and RabbitMQ 3 closes the whole connection at one that it
    cannot read. One at a time, the bad address is known.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._connection: AbstractConnection | None = None
        self._channel: UnderlayChannel | None = None
        self._alone = asyncio.Lock()

    async def send(self, address: str, body: bytes, properties: spec.Basic.Properties) -> None:
        """Raises RefusedError for an address that no broker can read, else TransientError."""
        async with self._alone:
            try:
                channel = await self._open()
            except CONNECTION_ERRORS as error:
                await self.close()
                raise TransientError(f"RabbitMQ cannot be reached: {error!r}") from error
            try:
                with _unasked_cancellation_as(RefusedError("RabbitMQ ended the connection.")):
                    await channel.basic_publish(
                        body,
                        routing_key=address,
                        properties=properties,
                        mandatory=True,
                        timeout=_PATIENCE,
                    )
            except TimeoutError as error:
                raise TransientError("RabbitMQ did not confirm a direct reply.") from error
            except CONNECTION_ERRORS as error:
                await self.close()
                # If the broker died at this moment, nobody waits for the answer any more.
                raise RefusedError(f"RabbitMQ: {error!r}") from error
            except (RefusedError, asyncio.CancelledError):
                await self.close()
                raise

    async def close(self) -> None:
        """Close the connection; the next answer opens another one."""
        connection, self._connection, self._channel = self._connection, None, None
        if connection is not None:
            with suppress(*CONNECTION_ERRORS):
                await connection.close()

    async def _open(self) -> UnderlayChannel:
        is_open = self._connection is not None and self._connection.connected.is_set()
        if is_open and self._channel is not None:
            return self._channel
        await self.close()
        self._connection = await aio_pika.connect(self._url, timeout=_PATIENCE)
        channel = await self._connection.channel(publisher_confirms=True)
        self._channel = await channel.get_underlay_channel()
        return self._channel


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
    while (message := await queue.get(fail=False, timeout=_PATIENCE)) is not None:
        yield message
