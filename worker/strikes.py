"""Which rows of a slice may be killing engines, and how the guilty ones are found. Pure.

A row gets a strike from each engine that dies with it. The more strikes it has, the fewer other
rows run with it. A row that kills therefore gets its last strikes alone, and no other row gets
those.
"""

import json
from collections.abc import Iterator, Sequence
from itertools import groupby

from shared.slices import StrikeRange

#: How many rows with one strike run together, and nothing else. Rows with more strikes run alone.
TOGETHER = 16
#: A row with this many is not run again: one among all rows, one among 16, two alone.
MAX_STRIKES = 4

#: A row of one of several slices that run together: which slice, and which of its rows.
Place = tuple[int, int]


def strikes_by_row(ranges: Sequence[StrikeRange], rows: int) -> list[int]:
    """The strikes of each row of a slice with `rows` rows."""
    strikes = [0] * rows
    for found in ranges:
        strikes[found.start : found.end] = [found.strikes] * (found.end - found.start)
    return strikes


def strike_ranges(strikes: Sequence[int]) -> tuple[StrikeRange, ...]:
    """The inverse of `strikes_by_row`."""
    found: list[StrikeRange] = []
    start = 0
    for count, same in groupby(strikes):
        end = start + sum(1 for _ in same)
        if count:
            found.append(StrikeRange(start, end, count))
        start = end
    return tuple(found)


def trial_groups(strikes: Sequence[Sequence[int]]) -> Iterator[list[Place]]:
    """The rows with strikes of several slices, in the groups that run one after another."""
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


def dead_row_error(
    strikes: int, *, before: int = 0, engine_deaths: int, tenants_limit: int | None = None
) -> bytes:
    """The error body of a row that is not run any more.

    It had `before` of its strikes when its batch began. `engine_deaths` counts those of its batch.
    `tenants_limit` is how many engines may die of the tenant's requests in a day, if so many have.
    """
    message = f"The engine died each of the {strikes - before} times that it ran this request"
    if strikes >= MAX_STRIKES:
        message += (
            ", the last two with no other request in it. "
            "Change this request before you send it again."
        )
    elif tenants_limit is not None:
        message += (
            ", among others. It is not tried alone, because as many engines have died of your "
            f"requests today as may in a day: {tenants_limit}. Send it again after midnight UTC, "
            "or ask your operator for a higher limit."
        )
    else:
        message += (
            f", among others. It is not tried alone, because {engine_deaths} engines have died of "
            "its batch's requests. Send it again in another batch."
        )
    error = {"message": message, "type": "server_error", "param": None, "code": "engine_died"}
    return json.dumps({"error": error}, separators=(",", ":")).encode()
