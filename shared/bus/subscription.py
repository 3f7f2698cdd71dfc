"""The subscription to batch messages, on a connection of its own."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import aio_pika
import structlog
from aio_pika.abc import AbstractConnection, AbstractIncomingMessage

from shared.bus import topology
from shared.bus.broker_errors import CONNECTION_ERRORS, PATIENCE, foreign_cancellation_as
from shared.errors import TransientError
from shared.tasks import end

log = structlog.get_logger()

#: How often the subscription is checked, in case it was lost silently.
_LISTEN_CHECK_SECONDS = 15.0

Handler = Callable[[AbstractIncomingMessage], Awaitable[None]]


class Subscription:
    """One consumer of batch messages, subscribed again after every loss until `close`."""

    def __init__(self, url: str, handler: Handler, *, prefetch: int) -> None:
        self._url = url
        self._handler = handler
        self._prefetch = prefetch
        self._connection: AbstractConnection | None = None
        self._keeping: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Raises TransientError if the first attempt fails."""
        lost = await self._subscribe()
        self._keeping = asyncio.create_task(self._keep(lost))

    async def close(self) -> None:
        """Stop consuming."""
        if self._keeping is not None:
            await end(self._keeping)
        await self._disconnect()

    async def _subscribe(self) -> asyncio.Event:
        """Return an event that is set when the subscription ends."""
        lost = asyncio.Event()
        try:
            with foreign_cancellation_as(TransientError("RabbitMQ was lost.")):
                # Not aio-pika's robust connection: if it is lost again while it restores its
                # consumers, it stays connected and receives nothing.
                self._connection = await aio_pika.connect(self._url, timeout=PATIENCE)
                self._connection.close_callbacks.add(lambda *_: lost.set())
                channel = await self._connection.channel()
                channel.close_callbacks.add(lambda *_: lost.set())
                await channel.set_qos(prefetch_count=self._prefetch, timeout=PATIENCE)
                queue = await channel.get_queue(topology.SUBMIT_QUEUE)
                await queue.consume(self._handler, timeout=PATIENCE)
        except CONNECTION_ERRORS as error:
            raise TransientError(f"RabbitMQ cannot be reached: {error!r}") from error
        return lost

    async def _keep(self, lost: asyncio.Event) -> None:
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(lost.wait(), _LISTEN_CHECK_SECONDS)
            if not lost.is_set() and await self._is_subscribed():
                continue
            log.warning("bus.subscribes_again")
            try:
                await self._disconnect()
                lost = await self._subscribe()
            except TransientError as error:
                log.warning("bus.not_subscribed", reason=str(error))
                lost.set()
                await asyncio.sleep(1)

    async def _is_subscribed(self) -> bool:
        """Whether a consumer is left: the broker may cancel it and keep its channel."""
        if self._connection is None:
            return False
        try:
            with foreign_cancellation_as(TransientError("RabbitMQ was lost.")):
                async with asyncio.timeout(PATIENCE):
                    channel = await self._connection.channel()
                    queue = await channel.declare_queue(topology.SUBMIT_QUEUE, passive=True)
                    await channel.close()
        except (TransientError, *CONNECTION_ERRORS):
            return False
        return bool(queue.declaration_result.consumer_count)

    async def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with (
                suppress(TransientError, *CONNECTION_ERRORS),
                foreign_cancellation_as(TransientError("RabbitMQ was lost.")),
            ):
                await asyncio.wait_for(connection.close(), PATIENCE)
