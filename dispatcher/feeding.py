"""When a lane's ready list has to be put in order again. Time is an argument."""

from typing import NamedTuple, Self

from shared.state import Backlog

#: How often a list is put in order again while no batch comes and this part of it is left.
_REORDER_SECONDS, _FULL_ENOUGH = 1.0, 0.75
#: With many batches this takes long, so it rests for so many times as long while this part is left.
_REST, _STILL_FULL = 10, 0.5
#: Batches that come meanwhile are put into the list by themselves; this rests, too.
_NEWS_REST = 2


class Feeding(NamedTuple):
    """How a ready list was last put in order."""

    #: When it ended, and how many seconds it took.
    at: float
    seconds: float
    #: What waited before, and the list's length afterwards.
    backlog: Backlog
    length: int
    #: The same of the last time that only new batches were put into the list.
    news_at: float = 0.0
    news_seconds: float = 0.0

    def is_enough(self, backlog: Backlog, now: float) -> bool:
        """Whether the list may stay as it is."""
        if now - self.news_at < _NEWS_REST * self.news_seconds:
            return True
        if self._has_news(backlog):
            return False
        if self.is_resting(backlog, now):
            return True
        is_recent = now - self.at < _REORDER_SECONDS
        return is_recent and backlog.ready >= self.length * _FULL_ENOUGH

    def is_resting(self, backlog: Backlog, now: float) -> bool:
        """Whether it is too early to look at all that waits."""
        is_recent = now - self.at < _REST * self.seconds
        return is_recent and backlog.ready > self.length * _STILL_FULL

    def with_news(self, backlog: Backlog, *, at: float, seconds: float, length: int) -> Self:
        """New batches were put into the list."""
        return self._replace(backlog=backlog, length=length, news_at=at, news_seconds=seconds)

    def _has_news(self, backlog: Backlog) -> bool:
        return backlog.newest != self.backlog.newest or backlog.batches > self.backlog.batches
