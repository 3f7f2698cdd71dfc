"""How a shell reads a file of variables, by the lines of the README."""

import re
import subprocess
from pathlib import Path

_README = Path(__file__).parents[1] / "README.md"
_SOURCING = re.compile(r"^\$ (set -a; \. \./(\S+); set \+a)$", re.MULTILINE)


def sourced(file: Path) -> dict[str, str]:
    """The variables that `sh -e` has once it has run the README's line on the file."""
    found = _SOURCING.search(_README.read_text())
    assert found, "The README no longer shows how to source the file."
    line = found[1].replace(f"./{found[2]}", f"./{file.name}")

    ended = subprocess.run(
        ["env", "-i", "PATH=/nowhere", "/bin/sh", "-ec", f"{line}\n/usr/bin/env -0"],
        cwd=file.parent,
        capture_output=True,
        text=True,
        check=False,
    )

    assert (ended.returncode, ended.stderr) == (0, "")
    lines = ended.stdout.rstrip("\0").split("\0")
    variables = dict(line.split("=", 1) for line in lines)
    return {name: value for name, value in variables.items() if name not in {"PATH", "PWD", "_"}}
