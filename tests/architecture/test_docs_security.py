"""docs/security.md: each claim names the tests that show it, and they exist."""

import re
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_PAGE = _ROOT / "docs/security.md"
_TEST = re.compile(r"`(tests/[\w/]+\.py):(test_\w+)`")


def test_each_line_names_tests_that_exist() -> None:
    claims = dict(_claims())

    assert len(claims) > 30
    assert [claim for claim, tests in claims.items() if not tests] == []
    assert [test for tests in claims.values() for test in tests if not _exists(*test)] == []


def test_the_page_for_reports_points_to_it() -> None:
    assert "(docs/security.md)" in (_ROOT / "SECURITY.md").read_text()


def _claims() -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Each row of the tables of claims, and the tests that it names."""
    for table in re.findall(
        r"^\| Claim \| Shown by \|\n\|[-|]+\n((?:\|.*\n)+)", _PAGE.read_text(), flags=re.MULTILINE
    ):
        for row in table.splitlines():
            claim, shown_by = row.strip("|").split(" | ", 1)
            yield claim.strip(), _TEST.findall(shown_by)


def _exists(file: str, name: str) -> bool:
    path = _ROOT / file
    return path.is_file() and f"def {name}(" in path.read_text()
