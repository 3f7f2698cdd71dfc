"""What a client has seen, one JSON line each, on disk before the client acts on it."""

import json
import time
from pathlib import Path
from typing import Any


class Journal:
    """One file, written by one process."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a")
        self.lines = 0

    def note(self, what: str, **fields: Any) -> None:
        """Write it down."""
        entry = {"at": round(time.time(), 3), "what": what, **fields}
        self._file.write(json.dumps(entry) + "\n")
        self._file.flush()
        self.lines += 1

    def close(self) -> None:
        self._file.close()


def read(path: Path) -> list[dict[str, Any]]:
    """All entries; none if there is no file. A last line that is not whole is left out."""
    if not path.exists():
        return []
    *whole, _ = path.read_text().split("\n")
    return [json.loads(line) for line in whole if line]
