"""What an engine returns: results, or the error that explains why there are none. Pure.

Replicas of an older version that speak the same protocol raise these errors to a newer lane job:
they keep their names and this module.
"""

from collections.abc import AsyncGenerator, Sequence
from typing import Protocol, Self

from shared.errors import SetupError, TransientError
from shared.ordering.work import Work

#: One OpenAI answer: HTTP status, and the body as ASCII JSON on one line.
Answer = tuple[int, bytes]
#: The answer to a row, with its GPU time in microseconds if an engine computed it.
Result = Answer | tuple[int, bytes, int]
#: Results that came at the same moment, each with the position of its line in the call.
Results = Sequence[tuple[int, Result]]


class Engine(Protocol):
    """What runs lines: `worker.engine_client.EngineClient`, and the scripted engines of tests."""

    def run_lines(
        self, lines: Sequence[bytes], order: Sequence[Work]
    ) -> AsyncGenerator[Results, None]:
        """The results of these lines, as they come; `order` has a work for each line.

        A line without a result at the end was withdrawn. Raises one of the errors below for the
        lines that have no result yet. Closing the generator, or cancelling whoever waits for it,
        takes these lines out of the engine.
        """

    async def withdraw(self, batch_id: str) -> None:
        """Take out all lines of the batch that still wait; those that the engine runs stay."""


class EngineGoneError(TransientError):
    """The engine died with these lines in it: they have no result, and one may be the reason."""

    def __init__(self, message: str, positions: Sequence[int] | None = None) -> None:
        """`positions` are those of the call's lines that were in the engine; None is all."""
        super().__init__(message)
        self.positions = positions

    def __reduce__(self) -> tuple[type[Self], tuple[str, Sequence[int] | None]]:
        return type(self), (str(self), self.positions)


class EngineHungError(EngineGoneError):
    """The engine made no progress with these lines in it, and was killed for that."""


class EngineUnavailableError(TransientError):
    """The engine cannot take lines now (it restarts, or was removed): it never saw these."""


class EngineYieldsError(EngineUnavailableError):
    """People have the engine's replica, and others have room for these lines: it never saw them."""

    def __init__(self, message: str, replica: str) -> None:
        """`replica` is Serve's name of the one that yields."""
        super().__init__(message)
        self.replica = replica

    def __reduce__(self) -> tuple[type[Self], tuple[str, str]]:
        return type(self), (str(self), self.replica)


class EngineFailedError(SetupError):
    """The engine cannot start without a change by the operator; the message is its own reason."""
