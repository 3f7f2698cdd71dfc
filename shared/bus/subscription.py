"""The subscription to the messages of a queue, on its own connection."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import aio_pika
import structlog
from aio_pika.abc import AbstractConnection, AbstractIncomingMessage

from shared.bus.broker_errors import CONNECTION_ERRORS, PATIENCE, foreign_cancellation_as
from shared.bus.declaration import declare_queue
from shared.errors import TransientError
from shared.tasks import end

log = structlog.get_logger()

#: How often the subscription is checked, in case it was lost silently.
_LISTEN_CHECK_SECONDS = 15.0

Handler = Callable[[AbstractIncomingMessage], Awaitable[None]]


class Subscription:
    """One consumer of a queue, subscribed again after every loss until `close`."""

    def __init__(
        self, url: str, queue: str, handler: Handler, *, prefetch: int, declares: bool = False
    ) -> None:
        """With `declares`, the queue is made if it is missing."""
        self._url = url
        self._declares = declares
        self._queue = queue
        self._handler = handler
        self._prefetch = prefetch
        self._connection: AbstractConnection | None = None
        self._keeping: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Raises TransientError if the first attempt fails."""
        lost = await self._subscribe()
        self._keeping = asyncio.create_task(self._keep(lost))

    def open_soon(self) -> None:
        """Subscribe as soon as the broker and the queue are there."""
        lost = asyncio.Event()
        lost.set()
        self._keeping = asyncio.create_task(self._keep(lost))

    async def close(self) -> None:
        """Stop consuming, and close the connection."""
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
                if self._declares:
                    queue = await declare_queue(channel, self._queue)
                else:
                    queue = await channel.get_queue(self._queue)
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
            if self._connection is not None:
                log.warning("bus.subscribes_again", queue=self._queue)
            try:
                await self._disconnect()
                lost = await self._subscribe()
            except TransientError as error:
                log.warning("bus.not_subscribed", queue=self._queue, reason=str(error))
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
                    queue = await channel.declare_queue(self._queue, passive=True)
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
