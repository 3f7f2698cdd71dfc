"""How often rounds are made, as bells may ring thousands of times a second. Pure."""

#: The time of one round on average.
PAUSE_SECONDS = 0.03
#: So many may follow each other at once. A batch needs one to be planned, one to be made ready, and
#: one to be finished, each of them a few milliseconds after the one before.
BURST = 4


class RoundPace:
    """A bucket of rounds that may be made, which is filled one by one.

    While bells ring all the time, rounds are as far from each other as their pauses. If all of a
    burst came back together, a small batch would wait for several pauses now and then.
    """

    def __init__(self) -> None:
        #: When the bucket is full again.
        self._full_at = 0.0

    def made(self, now: float) -> None:
        """A round has ended."""
        self._full_at = max(self._full_at, now) + PAUSE_SECONDS

    def rest(self, now: float) -> float:
        """Seconds until there may be another round."""
        return max(0.0, self._full_at - (BURST - 1) * PAUSE_SECONDS - now)
