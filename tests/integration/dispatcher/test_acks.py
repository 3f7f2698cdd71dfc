import asyncio
import secrets
from collections.abc import AsyncIterator

import aio_pika
import pytest
from aio_pika.abc import AbstractIncomingMessage

from dispatcher.acks import Acks
from tests.eventually import eventually

_MESSAGES = 6


class Held:
    """Deliveries in hand, and what is left of them once their channel is gone."""

    def __init__(self, url: str, queue: str) -> None:
        self._url = url
        self._queue = queue
        self.messages: list[AbstractIncomingMessage] = []

    async def take(self, link: aio_pika.abc.AbstractConnection) -> None:
        channel = await link.channel()
        await channel.set_qos(prefetch_count=_MESSAGES)

        async def keep(message: AbstractIncomingMessage) -> None:
            self.messages.append(message)

        await (await channel.get_queue(self._queue)).consume(keep)
        await eventually(lambda: len(self.messages) == _MESSAGES, 30)

    async def left(self) -> list[bytes]:
        """The bodies that come again; nobody else may hold any."""
        found = []
        async with await aio_pika.connect(self._url) as link:
            queue = await (await link.channel()).get_queue(self._queue)
            while (message := await queue.get(fail=False, no_ack=True)) is not None:
                found.append(message.body)
            await queue.delete(if_unused=False, if_empty=False)
        return sorted(found)


@pytest.fixture
async def held(amqp_url: str) -> AsyncIterator[tuple[Held, aio_pika.abc.AbstractConnection]]:
    name = f"acks.{secrets.token_hex(4)}"
    async with await aio_pika.connect(amqp_url) as link:
        channel = await link.channel()
        await channel.declare_queue(name, durable=True, arguments={"x-queue-type": "quorum"})
        for number in range(_MESSAGES):
            message = aio_pika.Message(str(number).encode(), delivery_mode=2)
            await channel.default_exchange.publish(message, name)
        one = Held(amqp_url, name)
        await one.take(link)
        yield one, link


@pytest.mark.parametrize(
    "rounds",
    [
        [[0, 1, 2]],
        [[2, 1, 0]],
        [[1, 2], [0]],
        [[4], [0, 1], [3]],
        [[5, 3, 1], [0, 2], [4]],
        [[0], [1], [3, 2], [5]],
    ],
    ids=str,
)
async def test_just_what_was_acked_never_comes_again(
    rounds: list[list[int]], held: tuple[Held, aio_pika.abc.AbstractConnection]
) -> None:
    one, link = held
    acks = Acks()

    for together in rounds:
        await asyncio.gather(*(acks.ack(one.messages[number]) for number in together))
    await link.close()

    acked = {number for together in rounds for number in together}
    assert await one.left() == [str(n).encode() for n in range(_MESSAGES) if n not in acked]


async def test_what_is_given_back_is_not_acked_by_those_after_it(
    held: tuple[Held, aio_pika.abc.AbstractConnection],
) -> None:
    one, link = held
    acks = Acks()

    await asyncio.gather(
        *(acks.ack(one.messages[number]) for number in (0, 2, 3)),
        # It comes again at once: to this very channel, as a delivery of its own.
        acks.requeue(one.messages[1]),
    )
    await acks.ack(one.messages[4])
    await link.close()

    assert await one.left() == [b"1", b"5"]


async def test_an_ack_on_a_channel_that_is_gone_is_an_error(
    held: tuple[Held, aio_pika.abc.AbstractConnection],
) -> None:
    one, link = held
    await link.close()

    with pytest.raises(RuntimeError):
        await Acks().ack(one.messages[0])

    assert len(await one.left()) == _MESSAGES
