"""Progress on standard error: a line that changes where it can, and now and then one elsewhere."""

import sys
import time
from collections.abc import Mapping
from contextlib import suppress
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


class Screen:
    """A line that changes on a terminal or in a notebook; nothing elsewhere, or if not shown."""

    def __init__(self, text: str, *, is_shown: bool = True) -> None:
        self._text = text
        self._is_shown = is_shown
        self._status: Any = None
        self._width = 0
        self._line_at = -_LINE_SECONDS
        self._said = ""

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

    def _say(self, text: str, now: float, *, is_end: bool) -> None:
        """Show the text; as lines, only if it is due, new, and not the end."""
        if self._write(text):
            return
        if now - self._line_at >= _LINE_SECONDS and not is_end and text != self._said:
            self._line_at, self._said = now, text
            sys.stderr.write(f"{text}\n")
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


class Progress(Screen):
    """Shows how far one batch is."""

    def __init__(self, gateway: Gateway, name: str, *, is_shown: bool = True) -> None:
        super().__init__(name, is_shown=is_shown)
        self._why = Why(gateway)
        self._pace = Pace()
        self._batch: Mapping[str, Any] = {}

    def show(self, batch: Mapping[str, Any] | None) -> None:
        """Show the batch; None if there is nothing new of it."""
        now = time.monotonic()
        if batch is not None:
            if batch["status"] != self._batch.get("status"):
                # It waited for something else.
                self._why.forget()
            self._batch = batch
            counts = batch["request_counts"]
            self._pace.note(counts["completed"] + counts["failed"], now)
        if not self._batch or not self._is_shown:
            return
        has_ended = self._batch["status"] in FINAL
        is_moving = bool(self._pace.rate(now)) or has_ended
        why = self._why.of(None if is_moving else self._batch["id"], now)
        text = progress_text(self._text, self._batch, self._pace, now, why, at=time.time())
        # The command itself says how it ended.
        self._say(text, now, is_end=has_ended)


class Why:
    """What a batch waits for, asked of its gateway now and then."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._text = ""
        self.forget()

    def forget(self) -> None:
        """Ask at once when asked next."""
        self._text, self._at = "", -_WHY_SECONDS

    def of(self, batch_id: str | None, now: float) -> str:
        """Why the batch does not go on; nothing if none waits. `now` is on the monotonic clock."""
        if batch_id is None:
            self._text = ""
        elif now - self._at >= _WHY_SECONDS:
            self._at = now
            # Progress is not worth the end of the command.
            with suppress(BatchyardError):
                explanation = self._gateway.get(f"batches/{batch_id}/explain")
                self._text = waiting_text(explanation, time.time())
        return self._text


class Sending(Screen):
    """Shows how much of an upload was sent."""

    def __init__(self, text: str, size: int, *, is_shown: bool = True) -> None:
        super().__init__(text, is_shown=is_shown)
        self._size = size

    def show(self, sent: int) -> None:
        """Show that so many bytes were sent."""
        if self._size:
            self._write(f"{self._text}, {sent * 100 // self._size} %")
