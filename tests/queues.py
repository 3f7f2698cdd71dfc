"""Queues of RabbitMQ, as whoever waits for a message sees them."""

from aio_pika.abc import AbstractIncomingMessage, AbstractQueue

from tests.eventually import eventually


async def next_message(
    queue: AbstractQueue,
    timeout: float,  # noqa: ASYNC109  # the limit of `eventually`
    *,
    answer_seconds: float = 5,
) -> AbstractIncomingMessage:
    """The next message, gone from the queue; waits for it.

    The broker has `answer_seconds` each time that it is asked.
    """
    found: list[AbstractIncomingMessage] = []

    async def has_come() -> bool:
        message = await queue.get(fail=False, no_ack=True, timeout=answer_seconds)
        found.extend([message] if message else [])
        return bool(found)

    await eventually(has_come, timeout)
    return found[0]
