"""The project's wheel, built as images and `pip install` build it."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

_ROOT = Path(__file__).parents[1]


def built_wheel(folder: Path, rooms: Sequence[str]) -> Path:
    """The wheel of these rooms, in a folder that is empty. Nothing is downloaded."""
    source, wheels = folder / "source", folder / "wheels"
    source.mkdir()
    wheels.mkdir()
    for name in ("pyproject.toml", "README.md"):
        (source / name).write_bytes((_ROOT / name).read_bytes())
    for room in rooms:
        subprocess.run(["cp", "-r", str(_ROOT / room), str(source / room)], check=True)
    # Without pip's isolation, which would download what builds it.
    build = "import setuptools.build_meta as b; print(b.build_wheel('../wheels'))"
    subprocess.run(
        [sys.executable, "-W", "ignore", "-c", build], cwd=source, check=True, capture_output=True
    )
    [wheel] = wheels.glob("*.whl")
    return wheel
