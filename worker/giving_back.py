"""When rows of batches that wait in an engine go to another one, because people have theirs. Pure.

Where live calls leave rows next to nothing, a row would wait for as long as people call, and its
slice and batch with it, while other engines have room.
"""

import math

#: Rows wait so long for live calls to leave them more, and those that come later only so long.
PATIENCE_SECONDS, LATER_SECONDS = 1.0, 0.1
#: What is known of the other engines is forgotten after so long.
_KNOWN_SECONDS = 5.0
#: Less than this part of the seats is next to nothing.
_NEXT_TO_NOTHING = 1 / 8


class GivingBack:
    """One engine's. Times are seconds of any clock."""

    def __init__(self, seats: int) -> None:
        """Rows of batches have so many seats at most."""
        self._seats = seats
        #: Since when rows have had next to nothing, and when another engine had room.
        self._since = math.inf
        self._free_at = -math.inf

    def know_free(self, replicas: int, now: float) -> None:
        """Know how many replicas of the engine leave more to rows."""
        self._free_at = now if replicas else -math.inf

    def see(self, limit: int, now: float) -> None:
        """Rows of batches have so many seats now."""
        if limit >= _NEXT_TO_NOTHING * self._seats:
            self._since = math.inf
        else:
            self._since = min(self._since, now)

    @property
    def has_begun(self) -> bool:
        """Whether rows have next to nothing here."""
        return self._since < math.inf

    def is_due(self, now: float) -> bool:
        """Whether rows that wait are to go now; it is asked before those go that come later."""
        has_room_elsewhere = now - self._free_at < _KNOWN_SECONDS
        is_due = now - self._since >= PATIENCE_SECONDS and has_room_elsewhere
        if is_due:
            self._since = now - PATIENCE_SECONDS + LATER_SECONDS
        return is_due
