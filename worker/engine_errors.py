"""What an engine gives: results, or why there are none. Imports no Ray, for those who need none."""

from collections.abc import Sequence
from typing import Protocol

from shared.errors import SetupError, TransientError

#: One OpenAI answer: HTTP status, and the body as ASCII JSON on one line.
Result = tuple[int, bytes]


class Engine(Protocol):
    """What runs lines: `worker.engine_client.EngineClient`, and the made-up ones of the tests."""

    async def run_lines(self, lines: Sequence[bytes]) -> list[Result]:
        """The results of these lines, in their order; raises one of the errors below."""


class EngineGoneError(TransientError):
    """The engine died while these lines were in it: they have no result, and may be the reason."""


class EngineHungError(EngineGoneError):
    """The engine gave no sign of progress with these lines in it, and was killed for it."""


class EngineUnavailableError(TransientError):
    """The engine cannot take lines now (restarting, removed): it never saw these."""


class EngineFailedError(SetupError):
    """The engine cannot start, and will not without a change; the message is its own reason."""
