"""Which rows of a slice may be what kills engines, and how they are told apart. Pure.

A row gets a strike from each engine that dies with it. The more it has, the fewer others are in the
engine with it, so that a row that kills has its last strikes alone, and no other row has them.
"""

import json
from collections.abc import Iterator, Sequence
from itertools import groupby

from shared.slices import StrikeRange

#: So many rows with one strike run together, and nothing else; with more, each runs alone.
TOGETHER = 16
#: A row with so many is not run again: one among all, one among 16, two alone.
MOST_STRIKES = 4

#: A row of one of some slices that run together: which slice, and which of its rows.
Place = tuple[int, int]


def strikes_of(doubts: Sequence[StrikeRange], rows: int) -> list[int]:
    """The strikes of each row of a slice that has so many."""
    strikes = [0] * rows
    for doubt in doubts:
        strikes[doubt.start : doubt.end] = [doubt.strikes] * (doubt.end - doubt.start)
    return strikes


def to_doubts(strikes: Sequence[int]) -> tuple[StrikeRange, ...]:
    """The reverse of `strikes_of`."""
    found: list[StrikeRange] = []
    start = 0
    for count, same in groupby(strikes):
        end = start + sum(1 for _ in same)
        if count:
            found.append(StrikeRange(start, end, count))
        start = end
    return tuple(found)


def trials(strikes: Sequence[Sequence[int]]) -> Iterator[list[Place]]:
    """The rows in doubt of some slices, in the groups that are run one after another."""
    together: list[Place] = []
    alone: list[Place] = []
    for index, counts in enumerate(strikes):
        for row, count in enumerate(counts):
            if count:
                (together if count == 1 else alone).append((index, row))
    for first in range(0, len(together), TOGETHER):
        yield together[first : first + TOGETHER]
    for place in alone:
        yield [place]


def given_up(strikes: int, *, before: int = 0, engine_deaths: int) -> bytes:
    """The error body of a row that is not run any more; `engine_deaths` is its batch's number.

    `before` of the strikes it had when its batch began.
    """
    message = f"The engine died each of the {strikes - before} times that it ran this request"
    if strikes >= MOST_STRIKES:
        message += ", the last two with no other request in it."
    else:
        message += (
            f", among others. It is not tried alone, because {engine_deaths} engines have died of "
            "its batch's requests."
        )
    error = {"message": message, "type": "server_error", "param": None, "code": "engine_died"}
    return json.dumps({"error": error}, separators=(",", ":")).encode()
