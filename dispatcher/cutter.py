"""Cuts the rows of one batch into slices, window by window. Pure.

The slices of a window have its rows in their order, as if there were no windows, or in groups.
"""

from collections.abc import Iterable, Sequence

from dispatcher.group_slicing import group_slices
from dispatcher.lane_shares import LaneShares
from dispatcher.row_window import RowWindow, WindowLimits
from dispatcher.slicing import SliceLimits, Slicer
from shared.input.rows import Row
from shared.slices import Slice


class Cutter:
    """Takes the rows in order. Each window that it gives has to be cut before the next one."""

    def __init__(
        self, shares: LaneShares, limits: SliceLimits, windows: WindowLimits | None
    ) -> None:
        """Without limits for windows, none of them is worth another order."""
        self._shares = shares
        self._limits = limits
        self._windows = windows
        self._window = self._new_window()
        self._slicer = Slicer(limits)

    def take(self, rows: Iterable[Row]) -> list[RowWindow]:
        """Take more rows; returns the windows that are complete."""
        complete: list[RowWindow] = []
        for row in rows:
            if not self._window.has_room(row):
                complete.append(self._window)
                self._window = self._new_window()
            self._window.add(row, self._shares.add(row))
        return complete

    def finish(self) -> list[RowWindow]:
        """There are no more rows; returns the last window, if any."""
        return [self._window] if self._window.rows else []

    def cut(self, window: RowWindow) -> list[Slice]:
        """The slices that the window's rows complete, in input order."""
        complete: list[Slice] = []
        for row in window.rows:
            complete += self._slicer.add(row.start, row.end, row.tokens, row.lane)
        return complete

    def groups(self, window: RowWindow, order: Sequence[int], *, copy: str) -> list[Slice]:
        """The window's own slices if it has the order of `group_slices`, which the caller skips."""
        first_row = self._slicer.next_row
        return group_slices(window.rows, order, first_row=first_row, limits=self._limits, copy=copy)

    def skip(self, window: RowWindow) -> list[Slice]:
        """Leave the window out; returns the slices that end before it."""
        return list(self._slicer.skip(len(window.rows)))

    def cut_rest(self) -> list[Slice]:
        """The slices that are not complete yet, at the end."""
        return list(self._slicer.finish())

    def _new_window(self) -> RowWindow:
        if self._windows is None:
            return RowWindow(WindowLimits(), slice_rows=self._limits.rows, is_sampled=False)
        return RowWindow(self._windows, slice_rows=self._limits.rows)
