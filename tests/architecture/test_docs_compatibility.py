"""docs/openai-compatibility.md: every decision is listed, and has a test that shows it.

That the named tests exist is held by `test_docs_names`. The table of fields is generated:
`python -m tests.architecture.test_docs_compatibility` writes it.
"""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from shared.openai.endpoints import ENDPOINTS

_PAGE = Path(__file__).parents[2] / "docs/openai-compatibility.md"
_DECISIONS = 13
_GENERATED = re.compile(r"(<!-- generated: fields -->\n).*?(<!-- end -->)", re.DOTALL)
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


def test_the_fields_of_requests_are_what_the_endpoints_say() -> None:
    assert _written() == _PAGE.read_text(), (
        "run python -m tests.architecture.test_docs_compatibility"
    )


def _rows() -> list[list[str]]:
    """The cells of each row that begins with an id."""
    lines = re.findall(r"^\| ([DE]\d+ \|.*) \|$", _PAGE.read_text(), flags=re.MULTILINE)
    return [[cell.strip() for cell in line.split(" | ")] for line in lines]


def _written() -> str:
    table = "\n".join(["| Endpoint | Open | Closed |", "|---|---|---|", *_fields()])
    return _GENERATED.sub(lambda part: f"{part[1]}\n{table}\n\n{part[2]}", _PAGE.read_text())


def _fields() -> Iterator[str]:
    for body in dict.fromkeys(endpoint.body for endpoint in ENDPOINTS.values()):
        paths = _names(path for path, endpoint in ENDPOINTS.items() if endpoint.body is body)
        yield f"| {paths} | {_names(body.open_fields())} | {_names(body.closed)} |"


def _names(fields: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(fields))


if __name__ == "__main__":
    _PAGE.write_text(_written())
