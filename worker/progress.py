"""Whether an engine that has work still gives anything. Pure but for its clock."""

import time
from collections.abc import Callable


class Progress:
    """Of all requests together: a slow one among many, or a long one alone, is no standstill."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._noted_at = clock()
        self._looks = 0

    def note(self) -> None:
        """The engine gave something: a token of any request is enough."""
        self._noted_at = self._clock()
        self._looks = 0

    def has_stalled(self, unfinished: int) -> bool:
        """Whether it has given nothing for the time, while so many requests were in it.

        Said at the second look: after a pause of the whole process, what the engine gave meanwhile
        is noted only after the first one.
        """
        if not unfinished:
            self.note()
        is_late = self._clock() - self._noted_at >= self._seconds
        self._looks = self._looks + 1 if is_late else 0
        return self._looks > 1
