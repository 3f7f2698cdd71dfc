"""The report of a rebuild: counts, problems and the progress of each step."""

from collections import Counter
from collections.abc import Callable

#: Called with the name of a step and how far it is, from 0 to 1.
Progress = Callable[[str, float], None]

_SHOWN_PROBLEMS = 20


class Report:
    """Filled by all steps of one rebuild."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        #: How many objects of each kind there were, by outcome.
        self.counts: Counter[str] = Counter()
        #: The first batches whose objects in S3 are incomplete, each with the reason.
        self.problems: list[str] = []

    def add_problem(self, text: str) -> None:
        """Count a batch that is left out; only the first few are named."""
        self.counts["problems"] += 1
        if len(self.problems) < _SHOWN_PROBLEMS:
            self.problems.append(text)
