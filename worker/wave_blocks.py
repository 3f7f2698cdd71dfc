"""The blocks of a wave. Pure: it imports no Ray, so that waves without Ray have the same ones."""

from collections.abc import Sequence

from shared.slices import Claim

_ROWS_PER_BLOCK = 128


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
    """How many blocks run at once, so that so many rows are in the engine."""
    return 1 + max(1, rows_in_engine // _rows(groups[0]))


def _rows(claims: Sequence[Claim]) -> int:
    return sum(claim.slice.rows for claim in claims)
