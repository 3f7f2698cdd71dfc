"""What an engine returns: results, or the error that explains why there are none. Pure.

Replicas of an older version raise these errors to a newer lane job: they keep their names and this
module.
"""

from collections.abc import Sequence
from typing import Protocol

from shared.errors import SetupError, TransientError

#: One OpenAI answer: HTTP status, and the body as ASCII JSON on one line.
Result = tuple[int, bytes]


class Engine(Protocol):
    """What runs lines: `worker.engine_client.EngineClient`, and the scripted engines of tests."""

    async def run_lines(self, lines: Sequence[bytes]) -> list[Result]:
        """The results of these lines, in their order; raises one of the errors below."""


class EngineGoneError(TransientError):
    """The engine died with these lines in it: they have no result, and one may be the reason."""


class EngineHungError(EngineGoneError):
    """The engine made no progress with these lines in it, and was killed for that."""


class EngineUnavailableError(TransientError):
    """The engine cannot take lines now (it restarts, or was removed): it never saw these."""


class EngineFailedError(SetupError):
    """The engine cannot start without a change by the operator; the message is its own reason."""
