from pathlib import Path

import pytest

from cli.shell import assignments
from tests.shell import sourced


@pytest.mark.parametrize(
    "value",
    [
        "tiny-chat all-MiniLM-L6-v2",
        "amqp://demo:a$HOME&b@127.0.0.1:5672/%2F?heartbeat=5&name=x",
        'it\'s `quoted`; "twice" \\ # and more',
        "",
        "two\nlines",
        "http://127.0.0.1:8000/v1",
    ],
)
def test_a_shell_that_sources_the_file_as_the_readme_says_gets_every_value_unchanged(
    value: str, tmp_path: Path
) -> None:
    written = tmp_path / "fleet.env"
    written.write_text(assignments({"BEFORE": "1", "VALUE": value, "AFTER": "2"}))

    assert sourced(written) == {"BEFORE": "1", "VALUE": value, "AFTER": "2"}
