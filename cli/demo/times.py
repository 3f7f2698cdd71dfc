"""How long each phase of the demo took."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

#: `make demo` says here how long it has just spent on the Python packages.
_INSTALL_VARIABLE = "INSTALL_SECONDS"


class Times:
    """The phases in the order in which they ended, with the seconds of each."""

    def __init__(self) -> None:
        self._phases: list[tuple[str, float]] = []
        installing = float(os.environ.get(_INSTALL_VARIABLE) or 0)
        if installing:
            self.add("install: Python packages", installing)
        self._began = time.monotonic() - installing

    def add(self, phase: str, seconds: float) -> None:
        """Keep a phase that was measured elsewhere."""
        self._phases.append((phase, seconds))

    @contextmanager
    def measure(self, phase: str) -> Iterator[None]:
        """Keep how long the block takes."""
        began = time.monotonic()
        yield
        self.add(phase, time.monotonic() - began)

    def rows(self) -> list[tuple[str, str]]:
        """Each phase and the whole so far, as text."""
        total = ("total (both batches at once)", time.monotonic() - self._began)
        return [(phase, f"{seconds:.1f} s") for phase, seconds in (*self._phases, total)]
