"""What the lock files pin."""

import re
from pathlib import Path

_LOCKS = Path(__file__).parents[1] / "locks"
_PIN = re.compile(r"^([a-zA-Z0-9_.-]+)(?:\[[^]]*\])?==([^ ;]+)", re.MULTILINE)


def path_of(lock: str) -> Path:
    """The file of the lock with this name."""
    return _LOCKS / f"{lock}.txt"


def pins(lock: str) -> dict[str, str]:
    """The versions that the lock has, by package."""
    return {name.lower(): version for name, version in _PIN.findall(path_of(lock).read_text())}


def normalised(name: str) -> str:
    """A package's name as locks have it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()
