"""Cuts the rows of one batch into slices, span by span. Pure.

The slices of a span have its rows in their order, as if there were no spans, or in groups.
"""

from collections.abc import Iterable, Sequence
from functools import cache

from dispatcher.group_slicing import group_slices
from dispatcher.row_span import RowSpan, SpanLimits
from shared.input.rows import Row
from shared.lane_shares import LaneShares
from shared.slices import Slice
from shared.slicing import SliceLimits, Slicer


class Cutter:
    """Takes the rows in order. Each span that it gives has to be cut before the next one."""

    def __init__(self, shares: LaneShares, limits: SliceLimits, spans: SpanLimits | None) -> None:
        """Without limits for spans, none of them is worth another order."""
        self._shares = shares
        #: By a lane's number.
        self._limits_of = cache(lambda lane: limits.of_engine(shares.all[lane].model.seats))
        self._spans = spans
        self._span = self._new_span()
        self._slicer = Slicer(limits)

    def take(self, rows: Iterable[Row]) -> list[RowSpan]:
        """Take more rows; returns the spans that are complete."""
        complete: list[RowSpan] = []
        for row in rows:
            if not self._span.has_room(row):
                complete.append(self._span)
                self._span = self._new_span()
            self._span.add(row, self._shares.add(row))
        return complete

    def finish(self) -> list[RowSpan]:
        """There are no more rows; returns the last span, if any."""
        return [self._span] if self._span.rows else []

    def cut(self, span: RowSpan) -> list[Slice]:
        """The slices that the span's rows complete, in input order."""
        complete: list[Slice] = []
        for row in span.rows:
            most_rows = self._limits_of(row.lane).rows
            complete += self._slicer.add(
                row.start, row.end, row.tokens, row.lane, most_rows=most_rows
            )
        return complete

    def groups(self, span: RowSpan, order: Sequence[int], *, copy: str) -> list[Slice]:
        """The span's own slices if it has the order of `group_slices`, which the caller skips."""
        first_row = self._slicer.next_row
        return group_slices(
            span.rows, order, first_row=first_row, limits_of=self._limits_of, copy=copy
        )

    def skip(self, span: RowSpan) -> list[Slice]:
        """Leave the span out; returns the slices that end before it."""
        return list(self._slicer.skip(len(span.rows)))

    def cut_rest(self) -> list[Slice]:
        """The slices that are not complete yet, at the end."""
        return list(self._slicer.finish())

    def _new_span(self) -> RowSpan:
        if self._spans is None:
            return RowSpan(SpanLimits(), self._limits_of, is_sampled=False)
        return RowSpan(self._spans, self._limits_of)
