"""How often rounds are made, as bells may ring thousands of times a second. Pure."""

#: What rounds take of the dispatcher's time, each a short one, while bells ring all the time.
_PART = 0.2
#: A round is followed by no longer pause: that of a busy dispatcher takes long because of all else.
PAUSE_SECONDS = 0.03
#: So many pauses may be saved up. A batch needs a round to be planned, one to be made ready, and
#: one to be finished, each of them a few milliseconds after the one before.
BURST = 4


class RoundPace:
    """A bucket of time for rounds, which is filled little by little.

    While bells ring all the time, rounds are as far from each other as their pauses. If all of a
    burst came back together, a small batch would wait for several pauses now and then.
    """

    def __init__(self) -> None:
        #: When the bucket is full again.
        self._full_at = 0.0

    def made(self, now: float, seconds: float) -> None:
        """A round has ended that took so many seconds."""
        self._full_at = max(self._full_at, now) + min(PAUSE_SECONDS, seconds / _PART)

    def rest(self, now: float) -> float:
        """Seconds until there may be another round."""
        return max(0.0, self._full_at - (BURST - 1) * PAUSE_SECONDS - now)
