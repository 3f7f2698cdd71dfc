"""Decides what a lane's job needs next. The caller does it; time is an argument."""

from collections import defaultdict
from enum import Enum, auto

from dispatcher.cluster import JobStatus
from shared.state import JobRecord

#: Seconds that a job may need from its submission to its first report.
START_SECONDS = 180.0
_MAX_PAUSE_SECONDS = 60.0


class Step(Enum):
    """The next action for a lane's job."""

    NOTHING = auto()
    #: Submit it to Ray, which does not know it: it was never submitted, or Ray was restarted.
    SUBMIT = auto()
    #: It is dead: take its claims back, and open another one if there is work.
    BURY = auto()
    #: It has stopped reporting: have Ray stop it.
    STOP = auto()


def next_step(
    job: JobRecord,
    status: JobStatus | None,
    *,
    is_needed: bool,
    now: float,
    silence_seconds: float,
) -> Step:
    """The next action for a job with this status in Ray; None if Ray does not know the job."""
    if status is None:
        return Step.SUBMIT if is_needed and not job.beat_at else Step.BURY
    if status.is_over:
        return Step.BURY
    last_sign = job.beat_at or job.opened_at + START_SECONDS
    return Step.STOP if now - last_sign > silence_seconds else Step.NOTHING


class FruitlessJobs:
    """Counts consecutive jobs of each lane that ended without a result. Each delays the next."""

    def __init__(self, max_in_a_row: int) -> None:
        self._max_in_a_row = max_in_a_row
        self._counts: defaultdict[str, int] = defaultdict(int)
        self._not_before: defaultdict[str, float] = defaultdict(float)

    def would_be_last(self, lane: str) -> bool:
        """Whether the lane has failed if one more job ends without a result."""
        return self._counts[lane] + 1 >= self._max_in_a_row

    def add(self, lane: str, now: float) -> None:
        """Note that one more job has ended, at `now`."""
        self._counts[lane] += 1
        pause = min(_MAX_PAUSE_SECONDS, 2.0 ** self._counts[lane])
        self._not_before[lane] = now + pause

    def may_open(self, lane: str, now: float) -> bool:
        """Whether the pause after the last failed job has passed."""
        return now >= self._not_before[lane]

    def forgive(self, lane: str) -> None:
        """Reset the count; a pause that has begun continues."""
        self._counts.pop(lane, None)

    def forget(self, lane: str) -> None:
        """Forget the count and the pause."""
        self._counts.pop(lane, None)
        self._not_before.pop(lane, None)
