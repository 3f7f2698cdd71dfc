"""How fast a lane runs. Pure."""


class RateMeter:
    """The lane's rows or tokens per second while it has work."""

    def __init__(self, *, seconds: float = 5) -> None:
        """Measured once a second, the rate covers about so many seconds."""
        self._weight = 1 / seconds
        self.rate = 0.0
        self._last: tuple[float, int] | None = None

    def measure(self, count: int, now: float, *, is_working: bool, known_rate: float) -> None:
        """Note how many rows or tokens the lane has run so far, at this time.

        `known_rate`, which the lane job before this one measured, is used until there is a better
        one.
        """
        if self.rate == 0:
            self.rate = known_rate
        if self._last is not None and is_working:
            then, count_then = self._last
            self.rate += self._weight * ((count - count_then) / (now - then) - self.rate)
        self._last = (now, count)
