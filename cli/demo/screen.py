"""What the demo shows: live bars on a terminal, plain lines anywhere else."""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table

#: Seconds between two lines about a batch without progress, in a plain log.
_REMINDER_SECONDS = 15.0
_LABEL_WIDTH = 11


class ProgressLine(NamedTuple):
    """What is shown of a batch: rows done, rows a second if known, and what it waits for."""

    done: int
    rows_per_second: float | None
    note: str


class Screen:
    """Everything that is printed; threads may print at the same time."""

    def __init__(self, console: Console | None = None) -> None:
        # Without soft_wrap, paths and log lines are broken at 80 columns.
        self._console = console or Console(highlight=False, soft_wrap=True)
        self._lock = threading.Lock()
        self.is_live = self._console.is_terminal

    def say(self, text: str) -> None:
        """One line as it is, such as the fleet's own reports."""
        with self._lock:
            self._console.print(escape(text))

    def line(self, label: str, text: str, style: str = "bold") -> None:
        """One line with its label in front."""
        with self._lock:
            self._console.print(f"[{style}]{label:<{_LABEL_WIDTH}}[/]{escape(text)}")

    def heading(self, text: str) -> None:
        """A line that begins a part."""
        with self._lock:
            self._console.print(f"\n[bold cyan]{escape(text)}[/]")

    def table(self, title: str, rows: Sequence[tuple[str, str]]) -> None:
        """Two columns, the second one of figures."""
        table = Table(title=title, title_justify="left", show_header=False)
        table.add_column()
        table.add_column(justify="right")
        for left, right in rows:
            table.add_row(escape(left), right)
        with self._lock:
            self._console.print()
            self._console.print(table)

    @contextmanager
    def bars(self, totals: dict[str, int]) -> Iterator["Bars"]:
        """One bar a name while the context is open."""
        if not self.is_live:
            yield Bars(self, totals, None)
            return
        progress = Progress(
            SpinnerColumn(),
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]:>11}"),
            TimeElapsedColumn(),
            TextColumn("[dim]{task.fields[note]}"),
            console=self._console,
        )
        with progress:
            yield Bars(self, totals, progress)


class Bars:
    """The bars of the batches under way."""

    def __init__(self, screen: Screen, totals: dict[str, int], progress: Progress | None) -> None:
        self._screen = screen
        self._totals = totals
        self._progress = progress
        self._tasks: dict[str, TaskID] = {}
        if progress is not None:
            for name, total in totals.items():
                self._tasks[name] = progress.add_task(name, total=total, rate="", note="")
        self._shown: dict[str, tuple[ProgressLine, float]] = {}

    def show(self, name: str, now: ProgressLine) -> None:
        """Bring the bar up to date; in a plain log, say what changed."""
        rate = f"{now.rows_per_second:.1f} rows/s" if now.rows_per_second else ""
        if self._progress is not None:
            self._progress.update(
                self._tasks[name], completed=now.done, rate=rate, note=escape(now.note)
            )
            return
        before, at = self._shown.get(name, (None, 0.0))
        has_moved = before is None or (before.done, before.note) != (now.done, now.note)
        if has_moved or time.monotonic() - at > _REMINDER_SECONDS:
            self._shown[name] = (now, time.monotonic())
            count = f"{now.done}/{self._totals[name]}"
            parts = (f"{name:<{_LABEL_WIDTH}}{count:>8}", rate, now.note)
            self._screen.line("progress", "  ".join(part for part in parts if part))

    def end(self, name: str) -> None:
        """Stop the clock of a batch that has ended."""
        if self._progress is not None:
            self._progress.stop_task(self._tasks[name])
