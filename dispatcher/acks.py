"""Acks of deliveries. One frame acks many if all earlier ones are settled as well."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from aio_pika.abc import AbstractIncomingMessage
from aiormq.abc import AbstractChannel

from dispatcher.waiting import resolve

#: Deliveries that were settled before earlier ones. Beyond this many, acks go one by one.
_MAX_AHEAD = 10_000


@dataclass
class _Row:
    """The deliveries of a channel, by their tags: 1, 2, 3 and so on."""

    #: Everything up to this tag is settled.
    settled: int = 0
    #: Later tags that are settled already.
    ahead: set[int] = field(default_factory=set)
    waiting: dict[int, tuple[AbstractIncomingMessage, asyncio.Future[None]]] = field(
        default_factory=dict
    )
    flushing: asyncio.Task[None] | None = None


class Acks:
    """Settles all deliveries of its channels. Nothing else may settle any of them."""

    def __init__(self) -> None:
        self._rows: WeakKeyDictionary[AbstractChannel, _Row] = WeakKeyDictionary()

    async def ack(self, message: AbstractIncomingMessage) -> None:
        """Ack the delivery, in one frame with others that are being acked."""
        row = self._row(message)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        row.waiting[message.delivery_tag or 0] = (message, done)
        if row.flushing is None:
            row.flushing = asyncio.create_task(_flush(row))
        await done

    async def requeue(self, message: AbstractIncomingMessage) -> None:
        """Return the delivery to its queue."""
        await message.reject(requeue=True)
        _settled(self._row(message), message.delivery_tag or 0)

    async def drop(self, message: AbstractIncomingMessage) -> None:
        """Reject the delivery: the broker moves it to the dead letters without a reason of ours."""
        await message.reject(requeue=False)
        _settled(self._row(message), message.delivery_tag or 0)

    def _row(self, message: AbstractIncomingMessage) -> _Row:
        return self._rows.setdefault(message.channel, _Row())


async def _flush(row: _Row) -> None:
    """Send acks one frame at a time: an ack of many must not follow one that it includes."""
    while row.waiting:
        acked, row.waiting = row.waiting, {}
        messages = {tag: message for tag, (message, _) in acked.items()}
        [error] = await asyncio.gather(_send(row, messages), return_exceptions=True)
        for _, done in acked.values():
            resolve(done, error)
    row.flushing = None


async def _send(row: _Row, messages: Mapping[int, AbstractIncomingMessage]) -> None:
    for tag in messages:
        _settled(row, tag)
    together = [tag for tag in messages if tag <= row.settled]
    if together:
        # All deliveries before the last of these are settled, or this frame settles them.
        await messages[max(together)].ack(multiple=len(together) > 1)
    for tag in messages.keys() - together:
        await messages[tag].ack()


def _settled(row: _Row, tag: int) -> None:
    if len(row.ahead) < _MAX_AHEAD:
        row.ahead.add(tag)
    while row.settled + 1 in row.ahead:
        row.settled += 1
        row.ahead.remove(row.settled)
