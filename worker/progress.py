"""Whether an engine that has work still makes progress."""

import time
from collections.abc import Callable


class Progress:
    """The progress of all requests together: one slow request among many is no standstill."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds = seconds
        self._clock = clock
        self._noted_at = clock()
        self._late_checks = 0

    def note(self) -> None:
        """Note that the engine gave output, if only one token of any request."""
        self._noted_at = self._clock()
        self._late_checks = 0

    def has_stalled(self, unfinished: int) -> bool:
        """Whether the engine has given nothing for too long, with `unfinished` requests in it.

        True only from the second check in a row on. After a pause of the whole process, the first
        check comes before the engine's output of the meantime is noted.
        """
        if not unfinished:
            self.note()
        is_late = self._clock() - self._noted_at >= self.seconds
        self._late_checks = self._late_checks + 1 if is_late else 0
        return self._late_checks > 1
