"""The examples in README and docs that are marked `python run`: their texts by page and number."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

_ROOT = Path(__file__).parents[1]
#: Programs that speak of batches themselves say what became of them.
_BATCH = re.compile(r"\bbatch(es)?\b")
_EXAMPLE = re.compile(r"^```python run\n(.*?)^```", re.MULTILINE | re.DOTALL)


def examples() -> dict[str, str]:
    """Of all pages."""
    return {
        f"{page.name}-{number}": found[1]
        for page in (_ROOT / "README.md", *sorted((_ROOT / "docs").rglob("*.md")))
        for number, found in enumerate(_EXAMPLE.finditer(page.read_text()), start=1)
    }


def assert_runs(
    example: str, environment: Mapping[str, str], *, folder: Path, timeout: float
) -> None:
    """Run the example as a program; one of a batch has to print that it has `completed`."""
    printed = run_python("-c", example, environment=environment, folder=folder, timeout=timeout)

    assert "completed" in printed or not _BATCH.search(example)


def run_python(
    *arguments: str | Path, environment: Mapping[str, str], folder: Path, timeout: float
) -> str:
    """What the program prints, as a user's process in the folder; fails if it fails."""
    ended = subprocess.run(
        [sys.executable, "-W", "error", *map(str, arguments)],
        env=environment_of_users(environment),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )

    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.strip()
    return ended.stdout


def environment_of_users(fleet: Mapping[str, str]) -> dict[str, str]:
    """The environment of a process that uses the fleet."""
    # The clients would rather use a proxy, or a key, of the developer's own environment.
    clean = {name: value for name, value in os.environ.items() if not name.startswith("OPENAI_")}
    return {**clean, "PYTHONPATH": str(_ROOT), **fleet}
