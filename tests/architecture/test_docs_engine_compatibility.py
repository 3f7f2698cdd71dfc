"""docs/engine-compatibility.md says what the last whole comparison with vLLM found.

`python -m tests.architecture.test_docs_engine_compatibility` writes it; the comparison itself is
`tests/engine/test_engine.py`.
"""

import re
from pathlib import Path

from tests.engine.compatibility.differences import DIFFERENCES
from tests.engine.compatibility.lines import LINES
from tests.engine.compatibility.page import differences, read_outcomes, summary, table

_PAGE = Path(__file__).parents[2] / "docs/engine-compatibility.md"
_GENERATED = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def test_each_line_has_a_name_of_its_own_and_an_outcome() -> None:
    assert len(LINES) >= 300
    assert [line.id for line in LINES] == list(read_outcomes())


def test_each_kind_of_difference_is_found() -> None:
    found = {one.here for one in read_outcomes().values()}

    assert found == {"same", *DIFFERENCES}


def test_the_page_says_what_was_found() -> None:
    assert _written() == _PAGE.read_text(), (
        "run python -m tests.architecture.test_docs_engine_compatibility"
    )


def _written() -> str:
    outcomes = read_outcomes()
    parts = {
        "summary": summary(outcomes) + "\n",
        "differences": "\n" + "\n".join(differences(outcomes)) + "\n\n",
        "table": "\n" + "\n".join(table(outcomes)) + "\n\n",
    }
    return _GENERATED.sub(lambda part: f"{part[1]}{parts[part[2]]}{part[3]}", _PAGE.read_text())


if __name__ == "__main__":
    _PAGE.write_text(_written())
