"""Checks a catalog's engine arguments against vLLM, in a process beside the start."""

import hashlib
import sys
import time
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from cli.servers import Child
from shared.errors import SetupError


class CatalogCheck:
    """The check of one catalog; one that has passed is not checked again."""

    def __init__(self, run_dir: Path, catalog: Path, environment: Mapping[str, str]) -> None:
        self._child = Child(
            "check",
            [sys.executable, "-m", "worker", "check", str(catalog)],
            run_dir,
            environment=dict(environment),
        )
        self._passed = run_dir / "catalog.passed"
        self._mark = hashlib.sha256(catalog.read_bytes() + _installed().encode()).hexdigest()
        self._is_known = self._passed.exists() and self._passed.read_text() == self._mark

    def start(self) -> None:
        """Start the check: importing vLLM takes many seconds."""
        if not self._is_known:
            self._child.log_file.unlink(missing_ok=True)
            self._child.start()

    def wait(self) -> None:
        """Return when it has passed; raises SetupError with each wrong line and its reason."""
        if self._is_known:
            return
        while self._child.exit_code is None:
            time.sleep(0.05)
        if self._child.exit_code != 0:
            raise SetupError(self._child.tail_of_log(10))
        self._passed.write_text(self._mark)


def _installed() -> str:
    """Identifies the vLLM and Ray that would check it; changes when they are reinstalled."""
    files = [spec.origin for name in ("vllm", "ray") if (spec := find_spec(name)) and spec.origin]
    return " ".join(f"{file} {Path(file).stat().st_mtime_ns}" for file in files)
