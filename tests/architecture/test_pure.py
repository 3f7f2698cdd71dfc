"""Modules whose docstrings claim to be pure are exactly those of the import contract."""

import ast
import re
import tomllib
from pathlib import Path

from tests.architecture.sources import ROOT, files, tree

_CLAIM = re.compile(r"\bPure\b|\bno I/O\b", re.IGNORECASE)


def test_every_module_that_claims_to_be_pure_is_in_the_contract_and_no_other() -> None:
    claimed = sorted(_name(path) for path in files() if _CLAIM.search(_docstring(path)))

    assert claimed == sorted(set(_contract()))
    assert len(_contract()) == len(set(_contract()))


def _docstring(path: Path) -> str:
    return ast.get_docstring(tree(path)) or ""


def _name(path: Path) -> str:
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    return name.removesuffix(".__init__")


def _contract() -> list[str]:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    [pure] = [one for one in contracts["contracts"] if one["id"] == "pure"]
    names: list[str] = pure["source_modules"]
    return names
