"""The letters in the broker's queue of dead letters, while somebody holds them."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Collection
from contextlib import aclosing

from aio_pika.abc import AbstractIncomingMessage

from shared.bus.connection import Bus
from shared.bus.dead_letters import DeadLetter, read, replay_headers
from shared.bus.topology import DEAD_QUEUE, SUBMIT_EXCHANGE

#: Done to one letter, whose message it settles.
Act = Callable[[Bus, AbstractIncomingMessage, DeadLetter], Awaitable[None]]
_CARRIED = ("message_id", "type", "content_type", "content_encoding", "correlation_id")


async def held(bus: Bus) -> AsyncGenerator[tuple[AbstractIncomingMessage, DeadLetter], None]:
    """Every letter in the queue; those that are not settled go back when this is closed."""
    async with bus.holding(DEAD_QUEUE) as messages:
        async for message in messages:
            yield message, read(message, service_user=bus.user)


async def first(bus: Bus, limit: int, *, tenant: str | None = None) -> list[DeadLetter]:
    """The oldest letters, or the tenant's, without their bodies, which may have a megabyte each."""
    found: list[DeadLetter] = []
    async with aclosing(held(bus)) as letters:
        async for _, letter in letters:
            if tenant in (None, letter.user):
                found.append(letter._replace(body=b"", size=len(letter.body)))
            if len(found) == limit:
                break
    return found


async def each(bus: Bus, wanted: Collection[str] | None, act: Act) -> list[str]:
    """Act on the letters with these ids, or on all for None. Returns the ids of those found."""
    done: list[str] = []
    async with aclosing(held(bus)) as letters:
        async for message, letter in letters:
            # A letter that is rejected again in the meantime is left, or this would never end.
            if (wanted is None or letter.id in wanted) and letter.id not in done:
                await act(bus, message, letter)
                done.append(letter.id)
    return done


async def replay(bus: Bus, message: AbstractIncomingMessage, letter: DeadLetter) -> None:
    """Publish the letter as it was sent, and remove it once the broker has confirmed that."""
    sent = letter.properties
    await bus.publish(
        # All batch messages go there, even those that reached our queue by another way.
        SUBMIT_EXCHANGE,
        letter.routing_key,
        letter.body,
        properties={
            **{name: sent[name] for name in _CARRIED if name in sent},
            "user_id": bus.user,
        },
        headers=replay_headers(letter),
        mandatory=True,
    )
    await message.ack()
