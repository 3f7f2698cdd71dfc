"""Replies to RabbitMQ's direct reply-to."""

import asyncio
from contextlib import suppress

import aio_pika
from aio_pika.abc import AbstractConnection
from aiormq import spec
from aiormq.abc import AbstractChannel as UnderlayChannel

from shared.bus.broker_errors import (
    CONNECTION_ERRORS,
    PATIENCE,
    RefusedError,
    foreign_cancellation_as,
)
from shared.errors import TransientError


class DirectReplies:
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
                with foreign_cancellation_as(RefusedError("RabbitMQ ended the connection.")):
                    await channel.basic_publish(
                        body,
                        routing_key=address,
                        properties=properties,
                        mandatory=True,
                        timeout=PATIENCE,
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
        self._connection = await aio_pika.connect(self._url, timeout=PATIENCE)
        channel = await self._connection.channel(publisher_confirms=True)
        self._channel = await channel.get_underlay_channel()
        return self._channel
