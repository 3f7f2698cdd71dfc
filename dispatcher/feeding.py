"""When a lane's ready list has to be put in order again. Time is an argument."""

from typing import NamedTuple

from shared.state import Backlog

#: How often a list is put in order again while no batch comes and this part of it is left.
_REORDER_SECONDS, _FULL_ENOUGH = 1.0, 0.75
#: With many batches this takes long, so it rests for so many times as long while this part is left.
_REST, _STILL_FULL = 10, 0.5


class Feeding(NamedTuple):
    """How a ready list was last put in order."""

    #: When it ended, and how many seconds it took.
    at: float
    seconds: float
    #: What waited before, and the list's length afterwards.
    backlog: Backlog
    length: int

    def is_enough(self, backlog: Backlog, now: float) -> bool:
        """Whether the list may stay as it is."""
        if now - self.at < _REST * self.seconds and backlog.ready > self.length * _STILL_FULL:
            return True
        return (
            now - self.at < _REORDER_SECONDS
            and backlog.newest == self.backlog.newest
            and backlog.batches <= self.backlog.batches
            and backlog.ready >= self.length * _FULL_ENOUGH
        )
