"""The command `batchyard` where nothing is installed but what `pip install batchyard` brings.

`python -m tests.alone ARGUMENT…` runs it. Other packages cannot be imported, though they are there.
"""

import re
import sys
import tomllib
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path
from types import ModuleType

_ROOT = Path(__file__).parents[1]
_ROOMS = {"batchyard", "cli", "shared", "tests"}
_NAME = re.compile(r"^[\w.-]+")


class _Nothing(MetaPathFinder):
    """Finds nothing for the modules of other packages."""

    def __init__(self, missing: set[str]) -> None:
        self._missing = missing

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] in self._missing:
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)
        return None


def installed_alone() -> set[str]:
    """The distributions that the project's own dependencies bring along, extras left out."""
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]
    open_, found = [*project["dependencies"]], set[str]()
    while open_:
        line = open_.pop()
        name = _normal(_NAME.findall(line)[0])
        if name in found or "extra ==" in line or "win" in line.partition(";")[2].lower():
            continue
        try:
            open_ += requires(name) or []
        except PackageNotFoundError:
            # For another version of Python.
            continue
        found.add(name)
    return found


def forbid_others() -> None:
    """Let the import of everything else fail, as if it were not installed."""
    allowed = installed_alone()
    missing = {
        module
        for module, names in packages_distributions().items()
        if not allowed & {_normal(name) for name in names}
    }
    sys.meta_path.insert(0, _Nothing(missing - _ROOMS - set(sys.stdlib_module_names)))


def _normal(name: str) -> str:
    return name.lower().replace("_", "-")


if __name__ == "__main__":
    forbid_others()

    from cli.__main__ import main

    main()
