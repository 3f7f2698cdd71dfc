"""docs/cli.md against the commands that it describes."""

from pathlib import Path

from cli.client.reference import with_reference

_PAGE = Path(__file__).parents[2] / "docs/cli.md"


def test_the_reference_is_what_the_commands_say() -> None:
    text = _PAGE.read_text()

    assert "### batchyard context add" in text
    assert with_reference(text) == text, "run make docs"
