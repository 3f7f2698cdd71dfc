"""What goes wrong with RabbitMQ, and how the client's errors become ours."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from aio_pika.exceptions import AMQPError

from shared.errors import TransientError

#: Seconds for one exchange with the broker. Without an answer, its outcome is unknown.
PATIENCE = 10.0
#: What aio-pika raises when the connection or channel is gone.
CONNECTION_ERRORS = (AMQPError, ConnectionError, TimeoutError, RuntimeError)


class UnroutableError(TransientError):
    """No queue took the message."""


class RefusedError(TransientError):
    """The queue is full, or no broker can read the address."""


class BlockedError(TransientError):
    """The broker accepts no messages because its disk or memory alarm is on."""


@contextmanager
def foreign_cancellation_as(loss: TransientError) -> Iterator[None]:
    """Raise `loss` for a cancellation that was not requested of this task.

    aiormq 7.2 cancels the waiters of a connection that it declares stuck.
    """
    try:
        yield
    except asyncio.CancelledError as error:
        if (task := asyncio.current_task()) is None or task.cancelling():
            raise
        raise loss from error
