"""docs/openai-compatibility.md: every decision is listed, and has a test that shows it.

That the named tests exist is held by `test_docs_names`.
"""

import re
from pathlib import Path

_PAGE = Path(__file__).parents[2] / "docs/openai-compatibility.md"
_DECISIONS = 13
_TEST = re.compile(r"`tests/[\w/]+\.py:test_\w+`")


def test_every_decision_is_listed_once_and_in_order() -> None:
    ids = [row[0] for row in _rows()]

    decided = [f"D{number}" for number in range(1, _DECISIONS + 1)]
    others = [f"E{number}" for number in range(1, len(ids) - _DECISIONS + 1)]
    assert ids == decided + others


def test_every_row_says_all_and_names_its_tests() -> None:
    lacking = [row[0] for row in _rows() if len(row) != 5 or not all(row)]
    unproved = [row[0] for row in _rows() if _TEST.sub("", row[-1]).strip(" ,")]

    assert (lacking, unproved) == ([], [])


def _rows() -> list[list[str]]:
    """The cells of each row that begins with an id."""
    lines = re.findall(r"^\| ([DE]\d+ \|.*) \|$", _PAGE.read_text(), flags=re.MULTILINE)
    return [[cell.strip() for cell in line.split(" | ")] for line in lines]
