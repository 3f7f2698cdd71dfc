"""How far the rows of a batch are in an engine, before their slices have their results. Pure."""

from collections.abc import Iterable
from typing import NamedTuple

#: How often engines are asked for it.
LOOK_SECONDS = 1.0
#: What an engine said this long ago counts no more.
FRESH_SECONDS = 5.0
#: An engine tells it of the batches with rows in it, and of so many that had an answer last: others
#: may have their rows in another engine of the lane.
TOLD_BATCHES = 50


class RowsInEngine(NamedTuple):
    """What an engine says of a batch's rows."""

    #: Rows that it has answered, with the tokens of their answers; those of results in Redis, too.
    answered: int = 0
    answer_tokens: int = 0
    #: Rows that it computes now, and the tokens of their answers so far.
    inside: int = 0
    made: int = 0


def together(some: Iterable[RowsInEngine]) -> RowsInEngine:
    """What several engines say of one batch."""
    return RowsInEngine(*map(sum, zip(RowsInEngine(), *some, strict=True)))
