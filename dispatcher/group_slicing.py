"""Cuts a span into slices whose rows need not be neighbours. Pure."""

from collections.abc import Callable, Iterator, Sequence

from dispatcher.row_span import SpanRow
from shared.slices import Copy, Slice, mask_of
from shared.slicing import SliceLimits


def group_slices(
    rows: Sequence[SpanRow],
    order: Sequence[int],
    *,
    first_row: int,
    limits_of: Callable[[int], SliceLimits],
    copy: str,
) -> list[Slice]:
    """The slices of a span's rows, of which the first one is row `first_row` of the batch.

    `limits_of` gives those of a lane by its number.

    Rows that follow each other in `order`, a permutation of their positions, share a slice up to
    its limits. Within a slice they are in input order, and so they are in the copy: the bytes of
    all slices without anything between them.
    """
    found: list[Slice] = []
    place = 0
    for group in _groups(rows, order, limits_of):
        own = [rows[position] for position in group]
        size = sum(row.end - row.start for row in own)
        found.append(
            Slice(
                own[0].start,
                own[-1].end,
                first_row,
                len(own),
                sum(row.tokens for row in own),
                own[0].lane,
                # A stretch with one slice needs none.
                mask_of(group) if len(own) < len(rows) else "",
                Copy(copy, place, place + size),
            )
        )
        place += size
    return found


def _groups(
    rows: Sequence[SpanRow], order: Sequence[int], limits_of: Callable[[int], SliceLimits]
) -> Iterator[list[int]]:
    """The positions of each slice's rows, in input order."""
    group: list[int] = []
    tokens = size = 0
    for position in order:
        row = rows[position]
        limits = limits_of(row.lane)
        tokens += row.tokens
        size += row.end - row.start
        if group and (
            row.lane != rows[group[0]].lane
            or len(group) == limits.rows
            or tokens > limits.tokens
            or size > limits.bytes
        ):
            yield sorted(group)
            group, tokens, size = [], row.tokens, row.end - row.start
        group.append(position)
    if group:
        yield sorted(group)
