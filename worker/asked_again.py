"""Rows whose answers did not fit and that are asked again in the same run of their slice. Pure.

A run that breaks leaves them without a result, and the next one begins with them anew; so nothing
has to be kept, and each row has one result.
"""

from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache

from shared.slices import Claim
from shared.table.asking import Asking
from worker.engine_errors import Result

_SUCCESS = 200


class AskedAgain:
    """What the rows of a slice have answered that was not taken. Rows are named by positions."""

    def __init__(self, claim: Claim, lines: Sequence[bytes]) -> None:
        self._asking = _asking(claim.asking) if claim.asking else None
        self._lines = lines
        self._refused = defaultdict[int, list[Result]](list)

    def __contains__(self, position: object) -> bool:
        return position in self._refused

    def takes(self, position: int, result: Result) -> bool:
        """Whether this is the row's result. Otherwise it is kept here, and the row goes on."""
        status, body, *_ = result
        before = len(self._refused.get(position, ()))
        if status != _SUCCESS or self._asking is None:
            return True
        if not self._asking.wants_another(self._lines[position], body, before):
            return True
        self._refused[position].append(result)
        return False

    def with_last(self, results: Sequence[Result | None]) -> list[Result | None]:
        """The results; rows that cannot be asked any more have their last answer."""
        return [
            self._refused[position].pop() if result is None and position in self else result
            for position, result in enumerate(results)
        ]

    @property
    def answers(self) -> list[Result]:
        """All answers that were not taken: they took tokens and time."""
        return [one for some in self._refused.values() for one in some]


@lru_cache(maxsize=64)
def _asking(text: str) -> Asking:
    """Made once for all slices of a batch: a schema may be large."""
    return Asking(text)
