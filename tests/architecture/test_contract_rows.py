"""Each row of the conformance checklist has a test under `tests/contract`, named by it."""

import ast
import re
from pathlib import Path

_TESTS = Path(__file__).parents[1] / "contract"
_ROW = re.compile(r"test_row_(\d\d)_")


def test_every_row_has_a_test() -> None:
    rows = {int(found[1]) for name in _names() if (found := _ROW.match(name))}

    assert rows == set(range(1, 25))


def _names() -> set[str]:
    return {
        node.name
        for file in _TESTS.glob("test_*.py")
        for node in ast.parse(file.read_text()).body
        if isinstance(node, ast.FunctionDef)
    }
