"""The report of a rebuild: counts, problems and the progress of each step."""

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

#: Called with the name of a step and how far it is, from 0 to 1.
Progress = Callable[[str, float], None]

_SHOWN_PROBLEMS = 20
_NAMED_DAMAGED = 1000


class Damaged(NamedTuple):
    """A damaged object, and what became of what it was for."""

    key: str
    #: What kind of object it is, in the words of `Kind`.
    kind: str
    reason: str
    outcome: str
    #: Its key in the quarantine; None if nothing of it is there.
    moved_to: str | None


class Report:
    """Filled by all steps of one rebuild."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        #: How many objects of each kind there were, by outcome.
        self.counts: Counter[str] = Counter()
        #: The first batches whose objects in S3 are incomplete, each with the reason.
        self.problems: list[str] = []
        #: The first damaged objects.
        self.damaged: list[Damaged] = []

    def add_damaged(self, damaged: Damaged) -> None:
        """Count a damaged object; only the first thousand are named."""
        self.counts["damaged"] += 1
        if len(self.damaged) < _NAMED_DAMAGED:
            self.damaged.append(damaged)

    def add_problem(self, text: str) -> None:
        """Count a batch that is left out; only the first few are named."""
        self.counts["problems"] += 1
        if len(self.problems) < _SHOWN_PROBLEMS:
            self.problems.append(text)
