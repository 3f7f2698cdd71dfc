"""The comparison of the examples' pages with what their programs print."""

from pathlib import Path

import pytest

from tests.shown import assert_shown, is_cut, shown

_EXAMPLES = Path(__file__).parents[2] / "examples"
_PAGE = """\
# A page

```
$ program --with \\
    more
progress: 3
12 rows of 0.5 s
answer: random words […]
[…]
```
"""


@pytest.fixture
def page(tmp_path: Path) -> Path:
    path = tmp_path / "README.md"
    path.write_text(_PAGE)
    return path


def test_a_page_shows_what_follows_its_command(page: Path) -> None:
    assert shown(page) == ["progress: 3", "12 rows of 0.5 s", "answer: random words […]"]
    assert is_cut(page)


def test_numbers_texts_and_what_is_left_out_may_differ(page: Path) -> None:
    printed = ["7 rows of 30 s", "answer: other words", "more", "still more"]

    assert_shown(page, printed, texts=["^(answer: ).*"], progress="progress")


@pytest.mark.parametrize(
    "printed",
    [
        ["7 lines of 30 s", "answer: other words"],
        ["7 rows of 30 s"],
        ["7 rows of 30 s", "said: other words"],
        ["more", "7 rows of 30 s", "answer: other words"],
    ],
)
def test_other_lines_are_found(printed: list[str], page: Path) -> None:
    with pytest.raises(AssertionError):
        assert_shown(page, printed, texts=["^(answer: ).*"], progress="progress")


@pytest.mark.parametrize(
    "name", ["questions", "service", "sentiment", "images", "documents", "retrieval"]
)
def test_each_page_shows_an_output(name: str) -> None:
    assert len(shown(_EXAMPLES / name / "README.md")) > 1
