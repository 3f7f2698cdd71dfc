"""The clock of some processes, which a test sets forwards and backwards; nobody else's changes."""

from collections.abc import Mapping
from pathlib import Path

from tests.servers import absent

#: Debian's package `libfaketime`, on any machine.
_LIBRARIES = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))


class Clock:
    """What the processes with its `environment` take for the time of day."""

    def __init__(self, folder: Path) -> None:
        if not _LIBRARIES:
            absent("libfaketime", "PATH")
        self._offset = folder / "offset"
        self.set(0)

    @property
    def environment(self) -> Mapping[str, str]:
        """The variables with which a process of this clock is started."""
        return {
            "LD_PRELOAD": str(_LIBRARIES[0]),
            "FAKETIME_TIMESTAMP_FILE": str(self._offset),
            "FAKETIME_NO_CACHE": "1",
            # A machine's clock is set, and its uptime is not.
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "FAKETIME_DONT_RESET": "1",
        }

    def set(self, seconds: int) -> None:
        """Let it be so many seconds ahead, or behind, from now on."""
        changed = self._offset.with_suffix(".new")
        changed.write_text(f"{seconds:+d}s\n")
        changed.replace(self._offset)
