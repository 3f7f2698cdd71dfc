"""How often rounds are made, as bells may ring thousands of times a second. Pure."""

from collections import deque

#: The time of one round on average.
PAUSE_SECONDS = 0.03
#: So many may follow each other at once. A batch needs one to be planned, one to be made ready, and
#: one to be finished, each of them a few milliseconds after the one before.
BURST = 4


class RoundPace:
    """Remembers when the last rounds were made."""

    def __init__(self) -> None:
        self._made = deque[float](maxlen=BURST)

    def made(self, now: float) -> None:
        """A round has ended."""
        self._made.append(now)

    def rest(self, now: float) -> float:
        """Seconds until there may be another round."""
        if len(self._made) < BURST:
            return 0.0
        return max(0.0, self._made[0] + BURST * PAUSE_SECONDS - now)
