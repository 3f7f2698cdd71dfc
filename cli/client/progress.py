"""Progress on standard error: a line that changes where it can, and now and then one elsewhere."""

import sys
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from cli.client.gateway import Gateway
from cli.client.pace import Pace
from cli.client.progress_text import progress_text, waiting_text
from shared.errors import BatchyardError
from shared.lifecycle import FINAL

#: Without a terminal, a line at most this often.
_LINE_SECONDS = 10.0
#: How often the gateway is asked why nothing runs.
_WHY_SECONDS = 5.0
#: Where the standard error of a notebook comes from.
_NOTEBOOK = "ipykernel."


class _Screen:
    """A line that changes on a terminal or in a notebook; nothing elsewhere, or if not shown."""

    def __init__(self, text: str, *, is_shown: bool = True) -> None:
        self._text = text
        self._is_shown = is_shown
        self._status: Any = None
        self._width = 0

    def __enter__(self) -> Self:
        if self._is_shown and sys.stderr.isatty():
            # Only needed on a terminal, and slow to import.
            from rich.console import Console
            from rich.status import Status

            console = Console(stderr=True, highlight=False)
            self._status = Status(self._text, console=console, spinner="dots")
            self._status.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._status is not None:
            self._status.stop()
        if self._width:
            sys.stderr.write("\n")
            sys.stderr.flush()

    def _write(self, text: str) -> bool:
        """Replace the line. False if somebody reads lines, who needs fewer of them."""
        if not self._is_shown:
            return True
        if self._status is None:
            return self._write_in_notebook(text)
        from rich.text import Text

        self._status.update(Text(text))
        return True

    def _write_in_notebook(self, text: str) -> bool:
        if not type(sys.stderr).__module__.startswith(_NOTEBOOK):
            return False
        # A notebook begins its line again, but does not clear it.
        sys.stderr.write(f"\r{text.ljust(self._width)}")
        sys.stderr.flush()
        self._width = len(text)
        return True


class Progress(_Screen):
    """Shows how far one batch is."""

    def __init__(self, gateway: Gateway, name: str, *, is_shown: bool = True) -> None:
        super().__init__(name, is_shown=is_shown)
        self._gateway = gateway
        self._pace = Pace()
        self._batch: Mapping[str, Any] = {}
        self._why = ""
        self._why_at = self._line_at = -_LINE_SECONDS
        self._said = ""

    def show(self, batch: Mapping[str, Any] | None) -> None:
        """Show the batch; None if there is nothing new of it."""
        now = time.monotonic()
        if batch is not None:
            if batch["status"] != self._batch.get("status"):
                # It waited for something else.
                self._why, self._why_at = "", now - _WHY_SECONDS
            self._batch = batch
            counts = batch["request_counts"]
            self._pace.note(counts["completed"] + counts["failed"], now)
        if not self._batch or not self._is_shown:
            return
        self._ask_why(now)
        text = progress_text(self._text, self._batch, self._pace, now, self._why, at=time.time())
        if self._write(text):
            return
        # The command itself says how it ended.
        is_due = now - self._line_at >= _LINE_SECONDS and self._batch["status"] not in FINAL
        if is_due and text != self._said:
            self._line_at, self._said = now, text
            sys.stderr.write(f"{text}\n")
            sys.stderr.flush()

    def _ask_why(self, now: float) -> None:
        """Ask what the batch waits for, while nothing of it ends."""
        if self._pace.rate(now) or self._batch["status"] in FINAL:
            self._why = ""
            return
        if now - self._why_at < _WHY_SECONDS:
            return
        self._why_at = now
        try:
            explanation = self._gateway.get(f"batches/{self._batch['id']}/explain")
        except BatchyardError:
            # Progress is not worth the end of the command.
            return
        self._why = waiting_text(explanation, time.time())


class Sending(_Screen):
    """Shows how much of an upload was sent."""

    def __init__(self, text: str, size: int, *, is_shown: bool = True) -> None:
        super().__init__(text, is_shown=is_shown)
        self._size = size

    def show(self, sent: int) -> None:
        """Show that so many bytes were sent."""
        if self._size:
            self._write(f"{self._text}, {sent * 100 // self._size} %")
