"""How fast a lane runs. Pure."""

#: The weight of one measurement. Measured once a second, the rate covers about five seconds.
_WEIGHT = 0.2


class RateMeter:
    """The lane's rows per second while it has work."""

    def __init__(self) -> None:
        self.rate = 0.0
        self._last: tuple[float, int] | None = None

    def measure(self, rows: int, now: float, *, is_working: bool, known_rate: float) -> None:
        """Note how many rows the lane has run so far, at this time.

        `known_rate`, which the lane job before this one measured, is used until there is a better
        one.
        """
        if self.rate == 0:
            self.rate = known_rate
        if self._last is not None and is_working:
            then, rows_then = self._last
            self.rate += _WEIGHT * ((rows - rows_then) / (now - then) - self.rate)
        self._last = (now, rows)
