"""The blocks of a wave. Pure: it imports no Ray, so that waves without Ray have the same ones."""

from collections.abc import Sequence

from shared.slices import Claim

_ROWS_PER_BLOCK = 128
#: More blocks than fill the engine, while their lines are no larger.
_LEAST_MORE, _MORE_BYTES = 2, 64 * 1024 * 1024


def grouped(claims: Sequence[Claim]) -> list[list[Claim]]:
    """The claims in order, small slices together: a Ray task for five rows would cost too much."""
    groups: list[list[Claim]] = []
    for claim in claims:
        if groups and _rows(groups[-1]) + claim.slice.rows <= _ROWS_PER_BLOCK:
            groups[-1].append(claim)
        else:
            groups.append([claim])
    return groups


def blocks_at_once(groups: Sequence[Sequence[Claim]], rows_in_engine: int) -> int:
    """How many blocks a mapper holds, so that so many rows are in the engine all the time.

    All but a few rows of a block may be done, and while they run, others need its seats. Blocks are
    read and committed meanwhile, so that the engine waits for neither.
    """
    full = 1 + rows_in_engine * len(groups) // sum(map(_rows, groups))
    more = _MORE_BYTES * len(groups) // max(1, sum(map(_bytes, groups)))
    return full + max(_LEAST_MORE, min(2 * full, more))


def _rows(claims: Sequence[Claim]) -> int:
    return sum(claim.slice.rows for claim in claims)


def _bytes(claims: Sequence[Claim]) -> int:
    return sum(claim.slice.end - claim.slice.start for claim in claims)
