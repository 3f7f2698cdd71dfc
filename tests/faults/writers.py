"""Writers that keep writing while something is broken, and what was confirmed of it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from itertools import count

from aio_pika.abc import AbstractIncomingMessage

from shared.bus.broker_errors import CONNECTION_ERRORS
from shared.bus.connection import Bus
from shared.bus.messages import SUBMIT
from shared.bus.topology import SUBMIT_EXCHANGE, submit_key
from shared.errors import TransientError
from tests.eventually import eventually

#: Writes something under a name and returns once the server has confirmed it.
Write = Callable[[str], Awaitable[None]]

_WRITERS = 4
_PAUSE_SECONDS = 0.1
#: How long the first confirm after a fault may take on a busy machine.
_PATIENCE_SECONDS = 300.0


class Confirmed(set[str]):
    """The names of all that was confirmed so far."""

    async def more(self) -> float:
        """Return once another one has come; the seconds that it took."""
        loop = asyncio.get_running_loop()
        began, before = loop.time(), len(self)
        await eventually(lambda: len(self) > before, _PATIENCE_SECONDS)
        return loop.time() - began


@asynccontextmanager
async def writing(write: Write) -> AsyncIterator[Confirmed]:
    """Write until the end of the context; what was not confirmed is dropped.

    Nothing but a TransientError may come out of `write`: anything else fails, a cancellation that
    nobody has asked for too.
    """
    confirmed, enough = Confirmed(), asyncio.Event()

    async def go_on(writer: int) -> None:
        for number in count():
            if enough.is_set():
                return
            name = f"{writer}.{number}"
            try:
                await write(name)
            except TransientError:
                await asyncio.sleep(_PAUSE_SECONDS)
            else:
                confirmed.add(name)

    writers = [asyncio.create_task(go_on(number)) for number in range(_WRITERS)]
    try:
        yield confirmed
        assert not any(writer.done() for writer in writers)
    finally:
        enough.set()
        ends = await asyncio.gather(*writers, return_exceptions=True)
    assert ends == [None] * _WRITERS


def to_publish(bus: Bus) -> Write:
    """Publishes batch messages."""

    async def publish(name: str) -> None:
        properties = {"message_id": name, "type": SUBMIT}
        await bus.publish(
            SUBMIT_EXCHANGE, submit_key("acme"), b"{}", properties=properties, mandatory=True
        )

    return publish


async def taken_from(bus: Bus) -> set[str]:
    """The names of the batch messages that were taken; it grows for as long as the bus is open."""
    taken: set[str] = set()

    async def take(message: AbstractIncomingMessage) -> None:
        taken.add(message.message_id or "")
        with suppress(*CONNECTION_ERRORS):
            # After a lost connection it comes again.
            await message.ack()

    await bus.consume(take)
    return taken
